#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "autograd/functional.h"
#include "core/context.h"
#include "io/safetensors.h"
#include "kernels/kernels.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/support/compare.h"

namespace faultline::optim {
namespace {

std::string golden(const std::string& name) {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/tests/golden/" + name;
}

constexpr double kEps = 0x1p-23;
constexpr double kHalfUlp = 0x1p-24;

// The parameters after each of the golden's steps, by `make`'s optimizer.
template <class Make>
std::vector<double> trajectory(const Safetensors& file, double lr, const Make& make) {
  Parameter parameter("p", clone(file.tensors.at("init")), Decay::yes);
  const auto optimizer = make(std::vector<Parameter*>{&parameter});
  const Tensor& gradients = file.tensors.at("gradients");
  std::vector<double> after;
  for (int64_t step = 0; step < gradients.size(0); ++step) {
    parameter.clear_gradient();
    // A gradient by the tape: d(sum(p * g)) / dp = g, exactly.
    const Tensor row = reshape(slice(gradients, 0, step, step + 1), {-1});
    backward(sum(parameter.value() * contiguous(row)));
    optimizer->step(lr);
    for (const double value : parameter.value().to_vector<double>()) after.push_back(value);
  }
  return after;
}

double number(const Safetensors& file, const std::string& name) {
  return file.tensors.at(name).item<double>();
}

// A step rounds the parameter once or twice (half an ulp each) and the moments and the quotient a
// handful of times, relative to an update of at most `largest`: 4 roundings of the parameter and 16
// of the update a step, over all steps so far.
std::vector<double> allowed(const std::vector<double>& expected, int64_t columns, double largest) {
  std::vector<double> bound;
  std::vector<double> magnitude(static_cast<size_t>(columns), 4);
  for (size_t i = 0; i < expected.size(); ++i) {
    double& size = magnitude[i % static_cast<size_t>(columns)];
    size = std::max(size, std::abs(expected[i]));
    const size_t steps = i / static_cast<size_t>(columns) + 1;
    bound.push_back(static_cast<double>(steps) * (4 * kHalfUlp * size + 16 * kEps * largest));
  }
  return bound;
}

class AdamwGolden : public testing::TestWithParam<const char*> {};

TEST_P(AdamwGolden, ParameterStaysWithinABoundOfF64) {
  const Safetensors file = read_safetensors(golden("optim_golden.safetensors"));
  const std::string run = GetParam();
  const double lr = number(file, run + ".lr");
  const AdamWOptions options{number(file, run + ".beta1"), number(file, run + ".beta2"),
                             number(file, run + ".eps")};
  const double decay = number(file, run + ".weight_decay");
  const auto actual = trajectory(file, lr, [&](std::vector<Parameter*> parameters) {
    return std::make_unique<AdamW>(std::vector<ParameterGroup>{{std::move(parameters), decay}},
                                   options);
  });
  const auto expected = file.tensors.at(run + ".f64").to_vector<double>();
  // |m / c1| / (sqrt(v / c2)) is at most (1 - beta1) / sqrt(1 - beta2) once one spike is alone in
  // the moments, and near 1 otherwise.
  const double ratio = std::max(1.0, (1 - options.beta1) / std::sqrt(1 - options.beta2));
  EXPECT_TRUE(test::within(actual, expected, allowed(expected, 8, lr * ratio)));
}

INSTANTIATE_TEST_SUITE_P(Runs, AdamwGolden, testing::Values("adamw", "adamw_fast"));

class SgdGolden : public testing::TestWithParam<const char*> {};

TEST_P(SgdGolden, ParameterStaysWithinABoundOfF64) {
  const Safetensors file = read_safetensors(golden("optim_golden.safetensors"));
  const std::string run = GetParam();
  const double lr = number(file, run + ".lr");
  const SgdOptions options{number(file, run + ".momentum"), number(file, run + ".nesterov") != 0};
  const double decay = number(file, run + ".weight_decay");
  const auto actual = trajectory(file, lr, [&](std::vector<Parameter*> parameters) {
    return std::make_unique<Sgd>(std::vector<ParameterGroup>{{std::move(parameters), decay}},
                                 options);
  });
  const auto expected = file.tensors.at(run + ".f64").to_vector<double>();
  // Updates are as large as lr |g| / (1 - momentum), per column; the bound follows each column's
  // own largest value, which the updates made.
  std::vector<double> largest(8, 4);
  std::vector<double> bound;
  const auto gradients = file.tensors.at("gradients").to_vector<double>();
  for (size_t i = 0; i < expected.size(); ++i) {
    double& size = largest[i % 8];
    size = std::max(
        {size, std::abs(expected[i]), lr * std::abs(gradients[i]) / (1 - options.momentum)});
    const size_t steps = i / 8 + 1;
    bound.push_back(static_cast<double>(steps) * 8 * kEps * size);
  }
  EXPECT_TRUE(test::within(actual, expected, bound));
}

INSTANTIATE_TEST_SUITE_P(Runs, SgdGolden, testing::Values("sgd", "sgd_momentum", "sgd_nesterov"));

TEST(BiasCorrection, IsWithinOneUlpOfPythonAtEveryGoldenStep) {
  const Safetensors file = read_safetensors(golden("optim_golden.safetensors"));
  const auto betas = file.tensors.at("bias_correction.betas").to_vector<double>();
  const auto steps = file.tensors.at("bias_correction.steps").to_vector<int64_t>();
  const auto values = file.tensors.at("bias_correction.values").to_vector<double>();
  ASSERT_GT(steps.size(), 2000u);
  Tensor counter = zeros({1}, DType::i64);
  Tensor corrections = zeros({2}, DType::f64);
  for (size_t b = 0; b < betas.size(); b += 2) {
    for (size_t i = 0; i < steps.size(); ++i) {
      counter.assign(std::span<const int64_t>(&steps[i], 1));
      KernelArgs args;
      args.inputs[0] = counter.view();
      args.input_count = 1;
      args.outputs[0] = corrections.view();
      args.output_count = 1;
      args.attributes = BiasCorrectionAttributes{betas[b], betas[b + 1]};
      kernels::bias_corrections.run(args);
      const auto found = corrections.to_vector<double>();
      ASSERT_LE(test::ulp_distance(found[0], values[b * steps.size() + i]), 1) << steps[i];
      ASSERT_LE(test::ulp_distance(found[1], values[(b + 1) * steps.size() + i]), 1) << steps[i];
    }
  }
}

TEST(StepCounter, StaysAtItsLargestValueInsteadOfWrapping) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  Tensor counter = tensor<int64_t>({kLargest - 1});
  KernelArgs args;
  args.outputs[0] = counter.view();
  args.output_count = 1;
  kernels::advance_counter.run(args);
  EXPECT_EQ(counter.item<int64_t>(), kLargest);
  kernels::advance_counter.run(args);
  EXPECT_EQ(counter.item<int64_t>(), kLargest);
}

// Equal counts before and after a step are the report.
TEST(StepCounter, AtItsLargestValueIsReportedByTheEventOfTheStep) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  Parameter parameter("p", ones({2}), Decay::yes);
  AdamW adamw({{{&parameter}, 0}});
  State state = adamw.state();
  state.tensors["counter"] = tensor<int64_t>({kLargest - 1});
  state.set_integer("applied", kLargest);
  adamw.load(state);
  std::vector<OptimizerEvent> seen;
  const auto watch = Context::current().events.subscribe<OptimizerEvent>(
      [&](const OptimizerEvent& event) { seen.push_back(event); });
  backward(sum(parameter.value()));
  for (int i = 0; i < 2; ++i) adamw.step(0.1);
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[1].counted_before, seen[1].counted_after);
  EXPECT_EQ(seen[1].counted_after, 0x1p63);  // 2^63 - 1 as a double
  EXPECT_EQ(seen[1].applied, kLargest) << "the host's count stays as well";
  EXPECT_TRUE(std::isfinite(parameter.value().to_vector<float>()[0]));
}

TEST(StepCounter, IsRefusedInAnotherDtypeAndNothingChanges) {
  Parameter parameter("p", ones({2}), Decay::yes);
  AdamW adamw({{{&parameter}, 0}});
  State state = adamw.state();
  state.tensors["counter"] = tensor<float>({5.0f});
  state.tensors["m.p"] = ones({2});
  EXPECT_THROW(adamw.load(state), InvalidArgument);
  EXPECT_EQ(adamw.counted(), 0);
  EXPECT_TRUE(test::same_bits(adamw.state().tensor("m.p"), zeros({2})));
}

TEST(Optimizer, LeavesAParameterWithoutAGradientAlone) {
  Parameter with("with", ones({3}), Decay::yes);
  Parameter without("without", ones({3}), Decay::yes);
  AdamW adamw({{{&with, &without}, 0.5}});
  backward(sum(with.value()));
  adamw.step(0.1);
  EXPECT_TRUE(test::same_bits(without.value(), ones({3})));
  EXPECT_LT(with.value().to_vector<float>()[0], 1.0f);
}

TEST(Optimizer, DecaysWhatItsModuleDeclaredAndNothingElse) {
  Parameter weight("weight", ones({2, 2}), Decay::yes);
  Parameter bias("bias", ones({2}), Decay::no);
  const auto groups = decay_groups({&weight, &bias}, 0.5);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].parameters, std::vector<Parameter*>{&weight});
  EXPECT_EQ(groups[0].weight_decay, 0.5);
  EXPECT_EQ(groups[1].parameters, std::vector<Parameter*>{&bias});
  EXPECT_EQ(groups[1].weight_decay, 0);
  // A zero gradient moves nothing but the decay: p (1 - lr decay), one rounding.
  for (const Parameter* parameter : {&weight, &bias}) backward(sum(parameter->value() * 0.0));
  AdamW adamw(groups);
  adamw.step(0.25);
  EXPECT_EQ(weight.value().to_vector<float>()[0], 0.875f);
  EXPECT_EQ(bias.value().to_vector<float>()[0], 1.0f);
}

// A checkpoint names a parameter's moments after it.
TEST(Optimizer, RefusesTwoParametersOfOneName) {
  Parameter a("p", ones({3}), Decay::yes);
  Parameter b("p", ones({3}), Decay::no);
  EXPECT_THROW(AdamW({{{&a}, 0.1}, {{&b}, 0}}), InvalidArgument);
  EXPECT_THROW(AdamW({{{&a, &a}, 0.1}}), InvalidArgument);
}

TEST(Optimizer, RefusesADecayThatIsNegativeOrNoNumber) {
  Parameter parameter("p", ones({3}), Decay::yes);
  for (const double decay : {-0.1, std::nan("")}) {
    EXPECT_THROW(AdamW({{{&parameter}, decay}}), InvalidArgument) << decay;
  }
}

TEST(Optimizer, ContinuesBitwiseFromItsState) {
  const auto run = [](AdamW& adamw, Parameter& parameter, int first, int last) {
    for (int i = first; i <= last; ++i) {
      parameter.clear_gradient();
      backward(sum(square(parameter.value() + static_cast<double>(i))));
      adamw.step(0.01 * i);
    }
  };
  Parameter through("p", ones({5}), Decay::yes);
  AdamW one({{{&through}, 0.1}});
  run(one, through, 1, 6);
  Parameter stopped("p", ones({5}), Decay::yes);
  AdamW before({{{&stopped}, 0.1}});
  run(before, stopped, 1, 3);
  Parameter resumed("p", clone(stopped.value()), Decay::yes);
  AdamW after({{{&resumed}, 0.1}});
  after.load(before.state());
  run(after, resumed, 4, 6);
  EXPECT_TRUE(test::same_bits(resumed.value(), through.value()));
  EXPECT_EQ(after.counted(), 6);
}

TEST(Clip, MeasuresTheGlobalNormAndHalvesAGradientTwiceTooLong) {
  Parameter a("a", zeros({1}), Decay::yes);
  Parameter b("b", zeros({1}), Decay::yes);
  backward(sum(a.value() * 6.0) + sum(b.value() * 8.0));
  const Clip clip = GradientClip({&a, &b}, 5).measure();
  EXPECT_EQ(clip.norm.item<double>(), 10);  // 36 + 64 and its root are exact
  EXPECT_EQ(clip.factor.item<double>(), 0.5);
  EXPECT_EQ(a.gradient().item<float>(), 6.0f);  // not written
  EXPECT_EQ(GradientClip({&a, &b}, 20).measure().factor.item<double>(), 1);
  EXPECT_EQ(GradientClip({&a, &b}, 0).measure().factor.item<double>(), 1);
}

TEST(Clip, SaysNanWhereTheNormIsNotFinite) {
  Parameter a("a", zeros({1}), Decay::yes);
  backward(sum(a.value() * std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(std::isnan(GradientClip({&a}, 1).measure().factor.item<double>()));
}

TEST(Clip, FactorScalesTheGradientThatTheOptimizerReads) {
  Parameter clipped("p", ones({4}), Decay::yes);
  Parameter scaled("p", ones({4}), Decay::yes);
  backward(sum(clipped.value() * 8.0));
  backward(sum(scaled.value() * 0.5));
  Sgd({{{&clipped}, 0}}).step(0.25, GradientClip({&clipped}, 1).measure().factor);
  Sgd({{{&scaled}, 0}}).step(0.25);  // norm 16, so the factor is 1/16, a power of two
  EXPECT_TRUE(test::same_bits(clipped.value(), scaled.value()));
}

TEST(Schedule, FollowsItsClosedForm) {
  const Schedule cosine{Decline::cosine, 1.0, 0.1, 10, 110};
  EXPECT_EQ(cosine.at(5), 0.5);
  EXPECT_EQ(cosine.at(10), 1.0);
  // Half way cos is 0 but for the rounding of pi / 2, about 6e-17.
  EXPECT_NEAR(cosine.at(60), 0.55, 1e-16);
  EXPECT_EQ(cosine.at(110), 0.1);
  EXPECT_EQ(cosine.at(1000000), 0.1);
  const Schedule linear{Decline::linear, 1.0, 0.0, 0, 4};
  EXPECT_EQ(linear.at(1), 0.75);
  EXPECT_EQ(linear.at(4), 0.0);
  const Schedule constant{Decline::constant, 0.5, 0.0, 2, 4};
  EXPECT_EQ(constant.at(1), 0.25);
  EXPECT_EQ(constant.at(100), 0.5);
  for (int64_t step = 11; step <= 110; ++step) EXPECT_LT(cosine.at(step), cosine.at(step - 1));
}

TEST(Schedule, WithoutWarmUpOrWithNothingElseStaysBetweenItsRates) {
  const Schedule at_once{Decline::cosine, 1.0, 0.1, 0, 100};
  EXPECT_EQ(at_once.at(0), 1.0);
  EXPECT_LT(at_once.at(1), 1.0);
  // The end of the run wins where the warm-up lasts as long as the run or longer.
  const Schedule all_warm_up{Decline::linear, 1.0, 0.1, 10, 10};
  EXPECT_EQ(all_warm_up.at(9), 0.9);
  EXPECT_EQ(all_warm_up.at(10), 0.1);
  const Schedule longer{Decline::linear, 1.0, 0.1, 20, 10};
  EXPECT_EQ(longer.at(15), 0.75);
  EXPECT_EQ(longer.at(20), 0.1);
}

TEST(Optimizer, TellsTheTapeThatItWroteToAParameter) {
  Parameter parameter("p", tensor<float>({1, 2}), Decay::yes);
  AdamW optimizer({{{&parameter}, 0}});
  const Tensor squares = parameter.value() * parameter.value();  // keeps the value for its slope
  backward(sum(parameter.value() * 1.0));
  optimizer.step(0.1);
  EXPECT_THROW(backward(sum(squares)), InvalidArgument);
}

TEST(Optimizer, DeclaresAllMemoryThatAnUpdateWrites) {
  Parameter parameter("p", zeros({100}), Decay::yes);
  AdamW optimizer({{{&parameter}, 0}});
  std::vector<ByteRange> written;
  const auto watch =
      Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
        if (std::string(event.launch.label.op) == "adamw") written = event.launch.writes();
      });
  backward(sum(parameter.value() * 1.0));
  optimizer.step(0.1);
  const State state = optimizer.state();
  for (const Tensor& tensor : {parameter.value(), state.tensor("m.p"), state.tensor("v.p")}) {
    const ByteRange memory = byte_range(tensor.view());
    EXPECT_TRUE(std::any_of(written.begin(), written.end(), [&](const ByteRange& range) {
      return range.begin <= memory.begin && memory.end <= range.end;
    }));
  }
}

}  // namespace
}  // namespace faultline::optim
