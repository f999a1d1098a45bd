#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "autograd/functional.h"
#include "nn/gpt2.h"

// What a unit tells observers of its forward pass.
namespace faultline::nn {
namespace {

using testing::_;

Gpt2Config small() {
  Gpt2Config config;
  config.vocab_size = 8;
  config.seq_len = 4;
  config.num_layers = 1;
  config.num_heads = 1;
  config.hidden_size = 8;
  return config;
}

TEST(ForwardEvent, ComesFromEachUnitInnerOnesFirst) {
  Context context;
  const ContextGuard guard(context);
  Gpt2 model(small(), 1);
  std::vector<std::string> paths;
  const auto subscription = context.events.subscribe<ForwardEvent>(
      [&](const ForwardEvent& event) { paths.emplace_back(event.module.path()); });
  model(tensor<int32_t>({1, 2}, {1, 2}), Mask{});
  // Which of the two embeddings is looked up first is the compiler's choice.
  EXPECT_THAT(paths, testing::ElementsAre(_, _, "h.0.ln_1", "h.0.attn.qkv", "h.0.attn.proj",
                                          "h.0.attn", "h.0.ln_2", "h.0.mlp.fc", "h.0.mlp.proj",
                                          "h.0.mlp", "h.0", "ln_f", "wte", ""));
}

// Whoever computes the output again and differentiates it leaves the caller's history alone.
TEST(ForwardEvent, ComputesTheOutputAgainWithAHistoryOfItsOwn) {
  Context context;
  const ContextGuard guard(context);
  Gpt2 model(small(), 1);
  std::vector<double> first, again;
  const auto subscription = context.events.subscribe<ForwardEvent>([&](const ForwardEvent& event) {
    if (*event.module.path() != 0) return;  // the whole model only
    first = event.output.to_vector<double>();
    const Tensor anew = event.again();
    if (again.empty()) again = anew.to_vector<double>();
    const Tensor leaf = model.parameters()[0]->value();
    gradients(sum(anew), std::array{leaf});
  });
  const Tensor logits = model(tensor<int32_t>({1, 2}, {1, 2}), Mask{});
  EXPECT_EQ(first, again);
  EXPECT_FALSE(gradient(model.parameters()[0]->value()).defined());
  backward(sum(logits));
}

}  // namespace
}  // namespace faultline::nn
