#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "core/context.h"
#include "nn/gpt2.h"
#include "nn/llama.h"

// What padding holds reaches nobody, and what a window hides does neither.
namespace faultline::nn {
namespace {

constexpr AttentionImplementation kAll[] = {AttentionImplementation::math,
                                            AttentionImplementation::flash};

// Two tokens and two slots that hold `padding`; the answer and the gradients of q, k and v.
std::vector<std::vector<float>> padded(AttentionImplementation which, float padding) {
  const Shape shape{1, 1, 4, 1};
  const Parameter q("q", tensor<float>({1, -1, 2, 3}, shape), Decay::no);
  const Parameter k("k", tensor<float>({1, 2, padding, padding}, shape), Decay::no);
  const Parameter v("v", tensor<float>({1, 2, padding, padding}, shape), Decay::no);
  const Tensor valid = cast(tensor<float>({1, 1, 0, 0}, {1, 4}), DType::boolean);
  const Tensor y = attention(q.value(), k.value(), v.value(), {.causal = true, .key_valid = valid},
                             {.policy = AttentionPolicy::require(which)});
  backward(sum(y * tensor<float>({1, 2, 3, 4}, shape)));
  std::vector<std::vector<float>> all{y.to_vector<float>()};
  for (const Parameter* p : {&q, &k, &v}) all.push_back(p->gradient().to_vector<float>());
  return all;
}

TEST(AttentionPadding, MayHoldNanAndInfinity) {
  for (const AttentionImplementation which : kAll) {
    const auto expected = padded(which, 0);
    EXPECT_EQ(padded(which, NAN), expected) << name(which);
    EXPECT_EQ(padded(which, INFINITY), expected) << name(which);
  }
}

// A NaN that may be seen is shown: hiding it would hide what is wrong with the model.
TEST(AttentionPadding, DoesNotHideNanOfVisibleKeys) {
  for (const AttentionImplementation which : kAll) {
    const Tensor v = tensor<float>({1, NAN, 3, 4}, {1, 1, 4, 1});
    const Tensor valid = cast(tensor<float>({1, 1, 1, 0}, {1, 4}), DType::boolean);
    const Tensor y = attention(zeros(v.shape()), zeros(v.shape()), v, {.key_valid = valid},
                               {.policy = AttentionPolicy::require(which)});
    EXPECT_TRUE(std::isnan(y.to_vector<float>()[2])) << name(which);
  }
}

// The last logits of a model with one layer: with another first token.
template <class Model, class Config>
bool first_token_reaches_the_last(Config config, int64_t window) {
  config.vocab_size = 8;
  config.seq_len = 6;
  config.num_layers = 1;
  config.num_heads = 2;
  config.hidden_size = 8;
  config.init_std = 0.5;
  config.window = window;
  Model model(config, 1);
  const auto last = [&](int32_t first) {
    const Tensor tokens = tensor<int32_t>({first, 2, 3, 4, 5}, {1, 5});
    return model.forward({.tokens_BT = tokens, .mask = {}, .last = 1}).template to_vector<float>();
  };
  return last(0) != last(1);
}

LlamaConfig one_layer_llama() {
  LlamaConfig config;
  config.num_key_value_heads = 1;
  config.intermediate_size = 16;
  return config;
}

TEST(ModelWindow, HoldsTheQueryAndTheKeysBeforeIt) {
  for (const int64_t window : {0, 5}) {
    EXPECT_TRUE((first_token_reaches_the_last<Gpt2>(Gpt2Config{}, window))) << window;
    EXPECT_TRUE((first_token_reaches_the_last<Llama>(one_layer_llama(), window))) << window;
  }
  for (const int64_t window : {1, 4}) {
    EXPECT_FALSE((first_token_reaches_the_last<Gpt2>(Gpt2Config{}, window))) << window;
    EXPECT_FALSE((first_token_reaches_the_last<Llama>(one_layer_llama(), window))) << window;
  }
}

TEST(ModelWindow, LeavesTheMaskItsOwn) {
  EXPECT_EQ(within_window({.mask = {.window = 3}}, 8).mask.window, 3);
  EXPECT_EQ(within_window({.mask = {}}, 8).mask.window, 8);
  EXPECT_EQ(within_window({.mask = {}}, 0).mask.window, 0);
}

}  // namespace
}  // namespace faultline::nn
