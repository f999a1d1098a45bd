#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "autograd/functional.h"
#include "nn/gpt2.h"
#include "nn/lora.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tests/nn/adapted_layer.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

using faultline::test::same_bits;

constexpr Gpt2Config kSmall{
    .vocab_size = 32, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16};

Tensor some_tokens() { return cast(uniform({3, 8}, 0, 32, 5, 1), DType::i32); }

void forward_backward(Gpt2& model) {
  backward(language_model_loss(model(some_tokens(), {}), some_tokens()));
}

int64_t bytes_of(const std::vector<Parameter*>& parameters) {
  int64_t bytes = 0;
  for (const Parameter* parameter : parameters) bytes += parameter->value().numel() * 4;
  return bytes;
}

int64_t live_bytes() { return Context::current().allocator->stats().live_bytes; }

TEST(LoraTraining, FrozenWeightsHoldNoGradientMemory) {
  Gpt2 full(kSmall, 3);
  const int64_t before = live_bytes();
  forward_backward(full);
  EXPECT_EQ(live_bytes() - before, bytes_of(full.parameters()));

  Gpt2 tuned(kSmall, 3);
  add_lora(tuned, "own", {.rank = 2}, tuned.dropout_key(), 1);
  const int64_t own = live_bytes();
  forward_backward(tuned);
  EXPECT_EQ(live_bytes() - own, bytes_of(trainable_parameters(tuned)));
  // Rank 2 on qkv [48, 16], proj [16, 16], fc [64, 16] and proj [16, 64] of two blocks.
  EXPECT_EQ(bytes_of(trainable_parameters(tuned)),
            4 * 2 * 2 * ((48 + 16) + (16 + 16) + (64 + 16) + (16 + 64)));
  EXPECT_EQ(trainable_parameters(tuned).size(), 16U);
}

// Launches of the backward pass that write as many elements as the layer's weight has.
int64_t weight_gradients(Linear& layer, const Tensor& x, int64_t* launches = nullptr) {
  int64_t found = 0;
  const Tensor y = layer(x);
  const auto watch =
      Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
        const Launch& work = event.launch;
        if (work.label.phase != Phase::backward) return;
        if (launches != nullptr && work.flops > 0 && std::string(work.label.op) == "matmul") {
          ++*launches;
        }
        for (int i = 0; i < work.args.output_count; ++i) {
          if (work.args.outputs[i].numel() == layer.weight().value().numel()) ++found;
        }
      });
  backward(y, ones(y.shape()));
  return found;
}

TEST(LoraTraining, FrozenWeightsHaveNoGradientProducts) {
  const Tensor x = normal({6, 24}, 0, 1, 3, 1);
  set_requires_grad(x);
  Linear plain(24, 20);
  int64_t products = 0;
  EXPECT_EQ(weight_gradients(plain, x, &products), 1);
  EXPECT_EQ(products, 2);  // dx, dW

  Linear tuned(24, 20);
  add_lora(tuned, "own", {.rank = 3}, DropoutKey(1), 1);
  products = 0;
  EXPECT_EQ(weight_gradients(tuned, x, &products), 0);
  EXPECT_EQ(products, 5);  // dx of the base; dB, d(A x), dA, dx of the adapter
}

struct BackwardMemory {
  int64_t highest = 0;  // bytes beyond what lived before, at any launch
  int64_t kept = 0;     // and after the pass
};

BackwardMemory backward_memory(Linear& layer, const Tensor& x) {
  const Tensor y = layer(x);
  const Tensor dy = ones(y.shape());
  const int64_t before = live_bytes();
  BackwardMemory memory;
  const auto watch = Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent&) {
    memory.highest = std::max(memory.highest, live_bytes() - before);
  });
  backward(y, dy);
  memory.kept = live_bytes() - before;
  return memory;
}

TEST(LoraTraining, PeakMemoryOfABackwardPassIsThatOfTheAdapter) {
  constexpr int64_t N = 64, I = 256, O = 512, R = 4;
  const Tensor x = normal({N, I}, 0, 1, 3, 1);
  Linear plain(I, O, Bias::no);
  const BackwardMemory full = backward_memory(plain, x);
  EXPECT_EQ(full.highest, 4 * O * I);
  EXPECT_EQ(full.kept, 4 * O * I);
  Linear tuned(I, O, Bias::no);
  add_lora(tuned, "own", {.rank = R}, DropoutKey(1), 1);
  const BackwardMemory own = backward_memory(tuned, x);
  // At the end dA and dB, without the s A x that the tape kept; on the way the gradient of A x.
  EXPECT_EQ(own.kept, 4 * (O * R + R * I - N * R));
  EXPECT_EQ(own.highest, 4 * (O * R + R * I));
}

TEST(LoraTraining, LeavesTheBaseAsItIsAndLearns) {
  // With the usual 0.02 the frozen head could not tell tokens apart.
  Gpt2Config config = kSmall;
  config.init_std = 0.2;
  Gpt2 model(config, 3);
  add_lora(model, "own", {.rank = 4, .alpha = 16}, model.dropout_key(), 1);
  State before = base_state(model);
  for (auto& [name, tensor] : before.tensors) tensor = clone(tensor);
  const std::vector<Parameter*> trained = trainable_parameters(model);
  optim::AdamW adamw(optim::decay_groups(trained, 0.1));
  optim::GradientClip clip(trained, 1);
  const Tensor tokens = some_tokens();
  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    for (Parameter* parameter : trained) parameter->clear_gradient();
    const Tensor loss = language_model_loss(model(tokens, {}), tokens) * (1.0 / 24);
    last = loss.item<double>();
    if (step == 0) first = last;
    backward(loss);
    adamw.step(3e-2, clip.measure().factor);
  }
  EXPECT_LT(last, 0.9 * first);
  for (const auto& [name, tensor] : base_state(model).tensors) {
    EXPECT_TRUE(same_bits(tensor, before.tensor(name))) << name;
  }
  // The optimizer's state: the counter, and two moments a trained tensor.
  EXPECT_EQ(adamw.state().tensors.size(), 1 + 2 * trained.size());
}

TEST(LoraTraining, RefusesATrainableSetThatIsAnAccident) {
  Gpt2 model(kSmall, 3);
  EXPECT_NO_THROW(check_trainable(model));  // without adapters the whole model is trained
  add_lora(model, "own", {}, model.dropout_key(), 1);
  EXPECT_NO_THROW(check_trainable(model));
  for (Parameter* parameter : model.parameters()) {
    if (parameter->name() == "h.1.ln_2.bias") parameter->set_trainable(true);
  }
  try {
    check_trainable(model);
    ADD_FAILURE() << "a trained base is taken";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("h.1.ln_2.bias"), std::string::npos);
  }
  for (Parameter* parameter : model.parameters()) {
    if (parameter->name() == "h.1.ln_2.bias") parameter->set_trainable(false);
  }
  activate(model, {});
  EXPECT_THROW(check_trainable(model), InvalidArgument);
  activate(model, {"own"});
  const Merge merge = merge_adapters(model, Originals::keep);
  EXPECT_THROW(check_trainable(model), InvalidArgument);
  unmerge_adapters(merge);
  EXPECT_NO_THROW(check_trainable(model));
  freeze(model);
  EXPECT_THROW(check_trainable(model), InvalidArgument);
}

TEST(LoraTraining, TheSetCountsElements) {
  Gpt2 model(kSmall, 3);
  const int64_t base = model.parameter_count();
  add_lora(model, "own", {.rank = 2, .targets = {LoraTargets::Kind::suffixes, {"qkv"}}},
           model.dropout_key(), 1);
  const TrainableSet set = trainable_set(model);
  EXPECT_EQ(set.frozen, base);
  EXPECT_EQ(set.trained, 2 * 2 * (48 + 16));
  ASSERT_EQ(set.names.size(), 4U);
  EXPECT_EQ(set.names[0], "h.0.attn.qkv.own.lora_A.weight");
}

TEST(LoraTraining, BaseAndAdapterAreSavedAndLoadedApart) {
  Gpt2 model(kSmall, 3);
  const State plain = model.state();
  add_lora(model, "own", {}, model.dropout_key(), 1);
  EXPECT_EQ(base_state(model).tensors.size(), plain.tensors.size());
  EXPECT_EQ(adapter_state(model).tensors.size(), 16U);

  Gpt2 other(kSmall, 4);
  add_lora(other, "own", {}, other.dropout_key(), 2);
  load_base(other, Gpt2(kSmall, 3).state());
  load_adapters(other, adapter_state(model));
  for (const auto& [name, tensor] : other.state().tensors) {
    EXPECT_TRUE(same_bits(tensor, model.state().tensor(name))) << name;
  }
  EXPECT_THROW(load_adapters(other, model.state()), InvalidArgument);
  EXPECT_THROW(load_adapters(other, State()), InvalidArgument);
  EXPECT_THROW(load_base(other, adapter_state(model)), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
