#include "nn/checkpoint.h"

#include <gtest/gtest.h>

#include <vector>

#include "autograd/functional.h"
#include "core/error.h"
#include "nn/gpt2.h"

// A checkpointed segment keeps nothing, and its gradients are those without it, bit by bit.
namespace faultline::nn {
namespace {

constexpr Gpt2Config kModel{.vocab_size = 32,
                            .seq_len = 8,
                            .num_layers = 2,
                            .num_heads = 2,
                            .hidden_size = 16,
                            .dropout = 0.1};

using Runner = std::function<Tensor(std::function<Tensor()>)>;
Tensor plainly(const std::function<Tensor()>& segment) { return segment(); }

// The gradients of a model's loss, of all its parameters one behind the other.
std::vector<float> gradients_of(const Runner& run) {
  Gpt2 model(kModel, 7);
  model.dropout_key().set(1, 1);
  const Tensor tokens = tensor<int32_t>({3, 1, 4, 1, 5, 9, 2, 6}, {1, 8});
  const Tensor labels = tensor<int32_t>({1, 4, 1, 5, 9, 2, 6, 5}, {1, 8});
  backward(run([&] { return language_model_loss(model(tokens, Mask{}), labels); }));
  std::vector<float> all;
  for (const Parameter* parameter : model.parameters()) {
    const auto part = parameter->gradient().to_vector<float>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Checkpoint, GivesTheGradientsOfThePlainRunBitByBit) {
  const std::vector<float> plain = gradients_of(&plainly);
  ASSERT_FALSE(plain.empty());
  EXPECT_EQ(gradients_of(&checkpoint), plain);
}

// Two segments that share a parameter, with something between them that is kept.
TEST(Checkpoint, SegmentsMayFollowEachOtherAndShareParameters) {
  const auto gradient_with = [](const Runner& run) {
    const Tensor weight = normal({4, 4}, 0, 1, 3, 1);
    set_requires_grad(weight);
    const Tensor x = normal({2, 4}, 0, 1, 3, 2);
    const Tensor first = run([&] { return tanh(matmul(x, weight)); });
    const Tensor between = exp(first);
    const Tensor second = run([&] { return tanh(matmul(between, weight)); });
    backward(sum(second * first));
    return gradient(weight).to_vector<float>();
  };
  EXPECT_EQ(gradient_with(&checkpoint), gradient_with(&plainly));
}

TEST(Checkpoint, RunsTheSegmentOnceMoreInTheBackwardPass) {
  const Tensor x = ones({3});
  set_requires_grad(x);
  int runs = 0;
  const Tensor y = checkpoint([&] {
    ++runs;
    return sum(exp(x) * x);
  });
  EXPECT_EQ(runs, 1);
  backward(y);
  EXPECT_EQ(runs, 2);
}

// What the segment makes inside is gone after it: its own handle was the only one.
TEST(Checkpoint, KeepsNothingFromInside) {
  Context& context = Context::current();
  const auto used_after = [&](const Runner& run) {
    const Tensor x = normal({256, 256}, 0, 1, 1, 1);
    set_requires_grad(x);
    const int64_t before = context.allocator->stats().live_bytes;
    const Tensor y = run([&] {
      Tensor h = x;
      for (int i = 0; i < 8; ++i) h = exp(h * 0.1);
      return sum(h);
    });
    return context.allocator->stats().live_bytes - before;
  };
  constexpr int64_t kOne = 256 * 256 * 4;
  EXPECT_GE(used_after(&plainly), 8 * kOne);
  EXPECT_LT(used_after(&checkpoint), kOne);
}

TEST(Checkpoint, WithoutGradientsIsThePlainRun) {
  const NoGrad off;
  EXPECT_EQ(checkpoint([] { return ones({1}) * 3; }).item<float>(), 3);
}

TEST(Checkpoint, RefusesASegmentThatDoesSomethingElseTheSecondTime) {
  const Tensor x = ones({3});
  set_requires_grad(x);
  int runs = 0;
  const Tensor y = checkpoint([&] { return ++runs == 1 ? sum(exp(x)) : sum(tanh(exp(x))); });
  EXPECT_THROW(backward(y), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
