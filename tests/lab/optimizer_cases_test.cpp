#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "lab/planted.h"
#include "lab/run_case.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tests/io/scratch_directory.h"

// The cases of optimizers and gradients: verified for any seed, and what their texts claim beside
// their figures is so, the answers of the exercises included.
namespace faultline::lab {
namespace {

using testing::HasSubstr;

const Catalogue& catalogue() {
  static const Catalogue ours;
  return ours;
}

CaseResult run_ours(const std::string& name, uint64_t seed = 1) {
  return run_case({&catalogue().fault_of(name), &catalogue().find(name)}, {.seed = seed});
}

class OptimizerCase : public testing::TestWithParam<const char*> {};

TEST_P(OptimizerCase, IsVerifiedForAnySeed) {
  for (const uint64_t seed : {1, 2, 17}) EXPECT_EQ(run_ours(GetParam(), seed).why, "") << seed;
}

INSTANTIATE_TEST_SUITE_P(Ours, OptimizerCase,
                         testing::Values("adamw.step-counter:bf16", "adamw.step-counter:fp16",
                                         "adamw.step-counter:int32-wrap",
                                         "adamw.step-counter:step-zero",
                                         "adamw.step-counter:int64-wrap", "wd.on-norm",
                                         "grad.dead:dead-relu", "grad.dead:detach",
                                         "grad.dead:no-path", "debug.observer-backward",
                                         "optim.missing-zero-grad"));

TEST(StepCounterCase, SaysWhatBecameOfTheCounter) {
  const auto evidence = [](const char* variant) {
    const CaseResult result = run_ours(std::string("adamw.step-counter:") + variant);
    return result.faulty.detections.at(0).evidence;
  };
  EXPECT_THAT(evidence("fp16"), HasSubstr("read 2048 before and 2048 after: it stands still"));
  EXPECT_THAT(evidence("int32-wrap"),
              HasSubstr("read 2147483647 before and -2147483648 after: it wrapped around"));
  EXPECT_THAT(evidence("step-zero"), HasSubstr("read -1 before and 0 after: it started below 0"));
}

// The largest int64 is no double; the healthy run shows the next one, 2^63.
TEST(StepCounterCase, OfInt64StaysAtItsLargestValueWhenItIsRight) {
  const CaseResult result = run_ours("adamw.step-counter:int64-wrap");
  EXPECT_EQ(result.healthy.metrics.find("counted"), 0x1p63);
  EXPECT_TRUE(std::isfinite(*result.healthy.metrics.find("p")));
}

void corrections_for_the_next_step(const KernelArgs& args) {
  const auto betas = args.attributes.as<BiasCorrectionAttributes>();
  const auto t = static_cast<double>(*args.inputs[0].as<int64_t>() + 1);
  args.outputs[0].as<double>()[0] = 1 - std::pow(betas.beta1, t);
  args.outputs[0].as<double>()[1] = 1 - std::pow(betas.beta2, t);
}
constexpr KernelRecord kNextStep{"bias_corrections/next step", &corrections_for_the_next_step};

// Why this case starts again: the usual patch mends every update, and not the counter.
TEST(StepCounterCase, ThatBeginsAtZeroStaysOneBehindUnderTheUsualPatch) {
  const char* const name = "adamw.step-counter:step-zero";
  const RunRecord healthy = run_ours(name).healthy;
  const Variant& variant = catalogue().find(name);
  Context context(ContextOptions{.threads = 1});
  const ContextGuard guard(context);
  const auto wrong = variant.plant(context);
  const auto patch = context.seams.replace<optim::CorrectionKernelSeam>(
      [](const KernelRecord&) { return &kNextStep; });
  const auto experiment = variant.build({});
  for (int64_t step = 1; step <= variant.steps(); ++step) experiment->step(step);
  Metrics patched;
  experiment->report(patched);
  EXPECT_EQ(patched.find("p"), healthy.metrics.find("p"));
  EXPECT_EQ(patched.find("counted"), 9);
  EXPECT_EQ(healthy.metrics.find("counted"), 10);
}

// p -= lr (m / c1) / (sqrt(v / c2) + epsilon).
void corrected_under_the_root(const KernelArgs& args) {
  const auto a = args.attributes.as<AdamwAttributes>();
  const double* c = args.inputs[1].as<double>();
  const double lr = *args.inputs[2].as<double>();
  const auto& t = *reinterpret_cast<const UpdateTensors*>(args.inputs[0].as<uint8_t>());
  for (int64_t i = 0; i < t.count; ++i) {
    const double g = t.gradient[i];
    t.first[i] += static_cast<float>((1 - a.beta1) * (g - t.first[i]));
    t.second[i] = static_cast<float>(a.beta2 * t.second[i] + (1 - a.beta2) * g * g);
    const double update = (t.first[i] / c[0]) / (std::sqrt(t.second[i] / c[1]) + a.epsilon);
    t.parameter[i] -= static_cast<float>(lr * update);
  }
}
constexpr KernelRecord kUnderTheRoot{"adamw/corrected under the root", &corrected_under_the_root};

TEST(StepCounterCase, WithTheOtherFormulaMovesNothingAfterTheWrap) {
  Context context(ContextOptions{.threads = 1});
  const ContextGuard guard(context);
  const auto wrong = catalogue().find("adamw.step-counter:int32-wrap").plant(context);
  const auto formula = context.seams.replace<optim::UpdateKernelSeam>(
      [](const KernelRecord&) { return &kUnderTheRoot; });
  Parameter parameter("p", ones({1}), Decay::no);
  optim::AdamW adamw({{{&parameter}, 0}});
  adamw.set_counted(2147483646);
  std::vector<double> values;
  for (int step = 0; step < 4; ++step) {
    parameter.clear_gradient();
    backward(parameter.value() * 0.1);
    adamw.step(1e-3);
    values.push_back(parameter.value().item<double>());
  }
  EXPECT_LT(values[0], 1);
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(values[3], values[0]);
}

TEST(DecayCase, IsSilentlyOffWhereTheFactorRoundsToOne) {
  Context context(ContextOptions{.threads = 1});
  const ContextGuard guard(context);
  Parameter gain("norm.weight", ones({1}), Decay::yes);
  optim::AdamW adamw(optim::decay_groups({&gain}, 0.01));
  backward(gain.value() * 0.0);
  for (int step = 0; step < 100; ++step) adamw.step(1e-6);
  EXPECT_EQ(gain.value().item<double>(), 1);
}

// Without weight decay nothing would be wrong with the run.
TEST(DecayCase, RefusesATrainingRunWithoutWeightDecay) {
  const PlannedFaults planned({"wd.on-norm"});
  train::ConfigBuilder own = train::ConfigBuilder::preset("tiny");
  EXPECT_THAT(planned.apply_needs(own), testing::IsEmpty());
  own.assign("weight_decay=0", "--set");
  EXPECT_THAT(error_of<InvalidArgument>([&] { planned.apply_needs(own); }),
              HasSubstr("--fault wd.on-norm: it shows only with weight_decay=0.1, and you set "
                        "weight_decay=0"));
}

TEST(DeadGradientCase, TellsZerosFromACutPath) {
  const auto evidence = [](const char* variant) {
    return run_ours(std::string("grad.dead:") + variant).faulty.detections.at(0).evidence;
  };
  EXPECT_THAT(evidence("dead-relu"), HasSubstr("0 parameters had no gradient and 5 one of zeros"));
  EXPECT_THAT(evidence("detach"), HasSubstr("4 parameters had no gradient and 0 one of zeros"));
  EXPECT_THAT(evidence("no-path"), HasSubstr("12 parameters had no gradient and 0 one of zeros"));
}

}  // namespace
}  // namespace faultline::lab
