#include "nn/gpt2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "autograd/functional.h"
#include "io/safetensors.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr double kEps = 0x1p-23;

Safetensors golden(const std::string& name) {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  return read_safetensors(std::string(root != nullptr ? root : ".") + "/tests/golden/" + name +
                          ".safetensors");
}

constexpr Gpt2Config kGolden{
    .vocab_size = 64, .seq_len = 16, .num_layers = 2, .num_heads = 2, .hidden_size = 32};

State initial(const Safetensors& file) {
  State state;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with("init.")) state.tensors[name.substr(5)] = tensor;
  }
  return state;
}

double largest(const std::vector<double>& values) {
  double found = 0;
  for (const double value : values) found = std::max(found, std::abs(value));
  return found;
}

// How far AdamW may carry a parameter from the golden. A float32 run of PyTorch stays within 2e-6;
// ours may stray twice as far. Where a gradient g is near epsilon, the update lr g / (|g| +
// epsilon) feels its rounding: lr epsilon / (|g| + epsilon)^2 times an ulp of the tensor's largest
// gradient, a step.
std::vector<double> adamw_bound(const std::vector<double>& gradients, double clip, int64_t steps) {
  constexpr double kRate = 1e-2;
  constexpr double kEpsilon = 1e-8;
  const double rounding = kEps * clip * largest(gradients);
  std::vector<double> bound;
  for (const double gradient : gradients) {
    const double size = clip * std::abs(gradient) + kEpsilon;
    const double felt = kRate * kEpsilon * rounding / (size * size);
    bound.push_back(4e-6 + static_cast<double>(steps) * std::min(2 * kRate, felt));
  }
  return bound;
}

// The mean loss; gradients are left on the model.
double forward_backward(Gpt2& model, const Tensor& tokens, const Tensor& labels, const Mask& mask,
                        Tensor* logits_out = nullptr) {
  const Tensor logits = model(tokens, mask);
  if (logits_out != nullptr) *logits_out = logits.detach();
  int64_t valid = 0;
  for (const int32_t label : labels.to_vector<int32_t>()) valid += label >= 0 ? 1 : 0;
  const Tensor loss = language_model_loss(logits, labels);
  backward(loss * (1.0 / static_cast<double>(valid)));
  return loss.item<double>() / static_cast<double>(valid);
}

// Two layers are about a dozen products in a row forward and twice that backward, each over up to
// 128 terms whose rounding grows like the root of their number (11); errors of a tensor's elements
// are relative to its largest one. 12 x 11 eps is 1.6e-5; backward twice that.
constexpr double kForward = 12 * 11 * kEps;
constexpr double kBackward = 2 * kForward;

void expect_gradients(Gpt2& model, const Safetensors& file) {
  for (const Parameter* parameter : model.parameters()) {
    const auto expected = file.tensors.at("grad." + parameter->name()).to_vector<double>();
    const double scale = largest(expected);
    ASSERT_GT(scale, 0) << parameter->name();
    EXPECT_TRUE(test::close(parameter->gradient().to_vector<double>(), expected,
                            {.absolute = kBackward * scale}))
        << parameter->name();
  }
}

// Both implementations of attention have to give the goldens.
class Gpt2Attention : public testing::TestWithParam<AttentionImplementation> {
 protected:
  std::shared_ptr<void> policy_ = Context::current().seams.replace<AttentionPolicySeam>(
      [which = GetParam()] { return AttentionPolicy::require(which); });
};
INSTANTIATE_TEST_SUITE_P(Golden, Gpt2Attention,
                         testing::Values(AttentionImplementation::math,
                                         AttentionImplementation::flash),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(Gpt2Attention, LossLogitsAndEveryGradientAreThoseOfF64) {
  const Safetensors file = golden("gpt2_golden");
  Gpt2 model(kGolden, 1);
  model.load(initial(file));
  Tensor logits;
  const double loss =
      forward_backward(model, file.tensors.at("tokens"), file.tensors.at("labels"), {}, &logits);
  const double expected = file.tensors.at("loss").item<double>();
  const double pytorch = std::abs(file.tensors.at("f32.loss").item<double>() - expected);
  EXPECT_LE(std::abs(loss - expected), std::max(4 * pytorch, 4 * kEps * expected));
  const auto all = file.tensors.at("logits").to_vector<double>();
  EXPECT_TRUE(test::close(logits.to_vector<double>(), all, {.absolute = kForward * largest(all)}));
  expect_gradients(model, file);
}

TEST_P(Gpt2Attention, PackedAndPaddedBatchIsThatOfF64) {
  const Safetensors file = golden("gpt2_golden_masked");
  Gpt2 model(kGolden, 1);
  model.load(initial(golden("gpt2_golden")));
  Mask mask;
  mask.documents = file.tensors.at("documents");
  mask.key_valid = cast(file.tensors.at("key_valid"), DType::boolean);
  Tensor logits;
  const double loss =
      forward_backward(model, file.tensors.at("tokens"), file.tensors.at("labels"), mask, &logits);
  const double expected = file.tensors.at("loss").item<double>();
  EXPECT_NEAR(loss, expected, 8 * kEps * expected);
  // The golden is 0 at padding.
  auto found = logits.to_vector<double>();
  const auto valid = mask.key_valid.to_vector<double>();
  for (size_t i = 0; i < found.size(); ++i) found[i] *= valid[i / 64];
  const auto all = file.tensors.at("logits").to_vector<double>();
  EXPECT_TRUE(test::close(found, all, {.absolute = kForward * largest(all)}));
  expect_gradients(model, file);
}

TEST(Gpt2Golden, TenAdamwStepsAreThoseOfF64) {
  const Safetensors file = golden("gpt2_golden");
  const Safetensors steps = golden("gpt2_adamw_golden");
  Gpt2 model(kGolden, 1);
  model.load(initial(file));
  optim::AdamW adamw(optim::decay_groups(model.parameters(), 0.1));
  const auto losses = steps.tensors.at("adamw.loss").to_vector<double>();
  const auto norms = steps.tensors.at("adamw.norm").to_vector<double>();
  for (int64_t step = 1; step <= 10; ++step) {
    model.clear_gradients();
    const double loss =
        forward_backward(model, file.tensors.at("tokens"), file.tensors.at("labels"), {});
    const optim::Clip clip = optim::GradientClip(model.parameters(), 1).measure();
    // A float32 run of PyTorch stays within 1e-6 of these losses; ours may stray twice as far, and
    // its clipping without PyTorch's 1e-6 moves them by up to 6e-8.
    EXPECT_NEAR(loss, losses[static_cast<size_t>(step - 1)], 2e-6) << step;
    EXPECT_NEAR(clip.norm.item<double>() / norms[static_cast<size_t>(step - 1)], 1, 1e-5) << step;
    adamw.step(1e-2, clip.factor);
    if (step != 1 && step != 10) continue;
    for (const Parameter* parameter : model.parameters()) {
      const std::string name = "step" + std::to_string(step) + "." + parameter->name();
      auto found = parameter->value().to_vector<double>();
      auto expected = steps.tensors.at(name).to_vector<double>();
      auto bound = adamw_bound(file.tensors.at("grad." + parameter->name()).to_vector<double>(),
                               1 / norms[0], step);
      if (parameter->name().ends_with("qkv.bias")) {
        // The key bias has no true gradient: its path is decided by rounding (golden/README.md).
        const auto keep_q_and_v = [](std::vector<double>& values) {
          values.erase(values.begin() + 32, values.begin() + 64);
        };
        keep_q_and_v(found);
        keep_q_and_v(expected);
        keep_q_and_v(bound);
      }
      // Few may lean on the second term, or the test would see nothing.
      const auto wide =
          std::count_if(bound.begin(), bound.end(), [](double b) { return b > 1e-5; });
      EXPECT_LE(wide, static_cast<ptrdiff_t>(bound.size() / 50)) << name;
      EXPECT_TRUE(test::within(found, expected, bound)) << name;
    }
  }
}

TEST(Gpt2Init, HasTheStandardDeviationsOfGpt2) {
  const Gpt2Config config{
      .vocab_size = 512, .seq_len = 128, .num_layers = 4, .num_heads = 4, .hidden_size = 128};
  Gpt2 model(config, 7);
  for (const Parameter* parameter : model.parameters()) {
    const auto values = parameter->value().to_vector<double>();
    const auto count = static_cast<double>(values.size());
    double sum = 0;
    double squares = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    if (parameter->decay() == Decay::no) {
      const bool norm = parameter->name().ends_with("weight");
      EXPECT_EQ(sum, norm ? count : 0) << parameter->name();
      continue;
    }
    const bool residual = parameter->name().ends_with("proj.weight");
    const double deviation = residual ? 0.02 / std::sqrt(8.0) : 0.02;
    // Six standard errors of a mean and of a deviation.
    EXPECT_LT(std::abs(sum / count), 6 * deviation / std::sqrt(count)) << parameter->name();
    EXPECT_NEAR(std::sqrt(squares / count) / deviation, 1, 6 / std::sqrt(2 * count))
        << parameter->name();
  }
}

TEST(Gpt2, RefusesAnEpsilonThatIsNotPositive) {
  for (const double epsilon : {0.0, -1e-5, std::nan("")}) {
    Gpt2Config config = kGolden;
    config.layer_norm_epsilon = epsilon;
    EXPECT_THROW(Gpt2(config, 1), InvalidArgument) << epsilon;
  }
}

TEST(Gpt2, RefusesAnInputLongerThanItsPositions) {
  Gpt2 model(kGolden, 1);
  EXPECT_THROW(model(zeros({1, 17}, DType::i32), {}), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
