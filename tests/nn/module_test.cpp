#include "nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "autograd/functional.h"
#include "nn/gpt2.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr Gpt2Config kSmall{
    .vocab_size = 32, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16};

Tensor tokens(int64_t rows, int64_t count, uint64_t stream = 1) {
  return cast(uniform({rows, count}, 0, 32, 5, stream), DType::i32);
}

double step(Gpt2& model, optim::AdamW& adamw, int64_t number) {
  model.clear_gradients();
  model.dropout_key().set(number, 0);
  const Tensor loss = language_model_loss(model(tokens(4, 8, static_cast<uint64_t>(number)), {}),
                                          tokens(4, 8, static_cast<uint64_t>(number) + 100));
  backward(loss * (1.0 / 32));
  adamw.step(1e-2);
  return loss.item<double>();
}

class Reaches : public Module {
 public:
  Reaches() : weight_(add_parameter("weight", {2}, Decay::yes)) {}
  Tensor inside() {
    return unit([&] { return use(weight_) * 2.0; });
  }
  Tensor outside() { return use(weight_) * 2.0; }

 private:
  Parameter& weight_;
};

TEST(Module, ReachesItsParametersOnlyInsideItsUnit) {
  Reaches module;
  EXPECT_EQ(module.inside().numel(), 2);
  EXPECT_THROW(module.outside(), InternalError);
  module.inside();
  EXPECT_THROW(module.outside(), InternalError);
}

TEST(Module, TrainsTheSameWhenHooksSwapItsParameters) {
  Gpt2 plain(kSmall, 3);
  Gpt2 swapped(kSmall, 3);
  // Between steps every parameter of the second model is a stand-in of NaNs: before a module's
  // forward the hooks put the real tensor in, after it they take it out again, as sharding does.
  std::map<Parameter*, Tensor> real;
  std::map<Parameter*, Tensor> stand_in;
  for (Parameter* parameter : swapped.parameters()) {
    real[parameter] = parameter->value();
    stand_in[parameter] = full(parameter->value().shape(), std::nan(""));
  }
  std::map<Module*, std::vector<Parameter*>> of;
  swapped.visit([&](Module& module) { of[&module] = module.parameters(); });
  const auto put = [&](const std::map<Parameter*, Tensor>& values) {
    return [&of, &values](Module& module) {
      for (Parameter* parameter : of[&module]) parameter->set_value(values.at(parameter));
    };
  };
  swapped.visit([&](Module& module) { module.set_hooks({put(real), put(stand_in)}); });

  optim::AdamW plain_adamw(optim::decay_groups(plain.parameters(), 0.1));
  optim::AdamW swapped_adamw(optim::decay_groups(swapped.parameters(), 0.1));
  for (int64_t number = 1; number <= 3; ++number) {
    const double expected = step(plain, plain_adamw, number);
    for (Parameter* parameter : swapped.parameters()) parameter->set_value(stand_in.at(parameter));
    for (const auto& [parameter, value] : real) clear_gradient(value);
    swapped.dropout_key().set(number, 0);
    const Tensor loss =
        language_model_loss(swapped(tokens(4, 8, static_cast<uint64_t>(number)), {}),
                            tokens(4, 8, static_cast<uint64_t>(number) + 100));
    backward(loss * (1.0 / 32));
    for (Parameter* parameter : swapped.parameters()) parameter->set_value(real.at(parameter));
    swapped_adamw.step(1e-2);
    EXPECT_EQ(loss.item<double>(), expected) << number;
  }
  const State expected = plain.state();
  for (const auto& [name, tensor] : swapped.state().tensors) {
    EXPECT_TRUE(test::same_bits(tensor, expected.tensor(name))) << name;
  }
}

TEST(Module, LoadChangesNothingWhenATensorIsMissingOrMisshapen) {
  Gpt2 model(kSmall, 1);
  State other = Gpt2(kSmall, 2).state();
  const Tensor before = clone(model.state().tensor("wte.weight"));
  other.tensors["ln_f.bias"] = zeros({3});
  EXPECT_THROW(model.load(other), InvalidArgument);
  other.tensors.erase("ln_f.bias");
  EXPECT_THROW(model.load(other), InvalidArgument);
  EXPECT_TRUE(test::same_bits(model.state().tensor("wte.weight"), before));
}

TEST(AttentionMask, WeightsAreZeroExactlyWhereThePredicateForbids) {
  Mask mask;
  mask.documents = tensor<int32_t>({0, 0, 0, 1, 1, 1, 2, 2, 0, 1, 1, 1, 1, 1, 2, 2}, {2, 8});
  const std::vector<uint8_t> valid{1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  mask.key_valid = cast(tensor(valid, {2, 8}), DType::boolean);
  const auto visible = visibility(mask, 2, 8, 8);
  Context& context = Context::current();
  const auto policy = context.seams.replace<AttentionPolicySeam>(
      [] { return AttentionPolicy::require(AttentionImplementation::math); });
  int seen = 0;
  const auto subscription = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
    if (std::string(event.launch.label.op) != "attention") return;
    ++seen;
    const TensorView& weights = event.launch.args.inputs[1];
    ASSERT_EQ(weights.shape, (Shape{2, 2, 8, 8}));
    const auto* data = weights.as<float>();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t q = 0; q < 8; ++q) {
          for (int64_t k = 0; k < 8; ++k) {
            const float weight = data[b * weights.strides[0] + h * weights.strides[1] +
                                      q * weights.strides[2] + k * weights.strides[3]];
            EXPECT_EQ(weight > 0, visible[static_cast<size_t>((b * 8 + q) * 8 + k)] != 0)
                << b << " " << h << " " << q << " " << k;
          }
        }
      }
    }
  });
  Gpt2 model(kSmall, 1);
  model(tokens(2, 8), mask);
  EXPECT_EQ(seen, 2);
}

// Where dropout let elements of ones([rows, ...]) live.
std::vector<float> kept(int64_t rows, int64_t first_sequence, int threads) {
  const Scoped<int> workers(Context::current().threads, threads);
  DropoutKey key(9);
  key.set(4, first_sequence);
  Dropout dropout(0.5, key);
  return dropout(ones({rows, 100, 7})).to_vector<float>();
}

TEST(Dropout, DependsOnNeitherThreadsNorTheSplitOfTheBatch) {
  const auto whole = kept(4, 0, 1);
  EXPECT_EQ(kept(4, 0, 3), whole);
  auto parts = kept(1, 0, 1);
  for (const float value : kept(3, 1, 2)) parts.push_back(value);
  EXPECT_EQ(parts, whole);
  const auto live = std::count(whole.begin(), whole.end(), 2.0f);  // kept ones are scaled by 2
  EXPECT_EQ(live + std::count(whole.begin(), whole.end(), 0.0f), 2800);
  EXPECT_NEAR(static_cast<double>(live) / 2800, 0.5, 6 * 0.5 / std::sqrt(2800.0));  // six sigma
}

TEST(Dropout, DoesNothingInEvaluationModeAndComesBackAfterIt) {
  Gpt2Config config = kSmall;
  config.dropout = 0.5;
  Gpt2 model(config, 1);
  Gpt2 without(kSmall, 1);
  const Tensor x = tokens(2, 8);
  {
    const EvaluationMode evaluation(model);
    EXPECT_TRUE(test::same_bits(model(x, {}), without(x, {})));
  }
  EXPECT_TRUE(model.training());
  EXPECT_FALSE(test::same_bits(model(x, {}), without(x, {})));
}

TEST(LaunchList, ReplayOfATrainingStepGivesTheSameBits) {
  const Tensor inputs = tokens(4, 8, 1);
  const Tensor labels = tokens(4, 8, 2);
  const auto one_step = [&](Gpt2& model, optim::GradientClip& clip, optim::AdamW& adamw) {
    model.clear_gradients();
    backward(language_model_loss(model(inputs, {}), labels) * (1.0 / 32));
    adamw.step(1e-2, clip.measure().factor);
  };
  constexpr double kMaxNorm = 0.1;  // small enough to act in every step
  Gpt2 stepped(kSmall, 5);
  optim::GradientClip stepped_clip(stepped.parameters(), kMaxNorm);
  optim::AdamW stepped_adamw(optim::decay_groups(stepped.parameters(), 0.1));
  for (int i = 0; i < 3; ++i) one_step(stepped, stepped_clip, stepped_adamw);
  ASSERT_LT(stepped_clip.measure().factor.item<double>(), 1);

  Gpt2 replayed(kSmall, 5);
  optim::GradientClip replayed_clip(replayed.parameters(), kMaxNorm);
  optim::AdamW replayed_adamw(optim::decay_groups(replayed.parameters(), 0.1));
  Context& context = Context::current();
  LaunchList list;
  const auto pool = Allocator::create(cpu_device());  // what the list refers to stays alive in it
  {
    const Scoped<LaunchRecorder*> recording(context.recorder, &list);
    const Scoped<std::shared_ptr<Allocator>> own(context.allocator, pool);
    one_step(replayed, replayed_clip, replayed_adamw);
  }
  for (int i = 0; i < 2; ++i) list.replay();
  EXPECT_EQ(replayed_adamw.counted(), 3);
  const State expected = stepped.state();
  for (const auto& [name, tensor] : replayed.state().tensors) {
    EXPECT_TRUE(test::same_bits(tensor, expected.tensor(name))) << name;
  }
}

// Gives a test the protected registration.
class Parts : public Module {
 public:
  void child(const std::string& name, Module& part) { add_child(name, part); }
  void parameter(const char* name) { add_parameter(name, {2}, Decay::yes); }
  void buffer(const char* name) { add_buffer(name, zeros({2})); }
};

// With two parents a parameter would be listed twice and be saved under the later name.
TEST(Module, HasOneParent) {
  Parts shared;
  Parts first;
  Parts second;
  first.child("part", shared);
  EXPECT_THROW(second.child("part", shared), InvalidArgument);
  EXPECT_THROW(first.child("again", shared), InvalidArgument);
  EXPECT_STREQ(shared.path(), "part");
}

// Of two tensors with one name a checkpoint would keep one.
TEST(Module, RefusesASecondPartOfOneName) {
  Parts module;
  Parts child;
  module.parameter("weight");
  EXPECT_THROW(module.parameter("weight"), InvalidArgument);
  EXPECT_THROW(module.buffer("weight"), InvalidArgument);
  EXPECT_THROW(module.child("weight", child), InvalidArgument);
  module.buffer("mean");
  module.child("child", child);
  EXPECT_EQ(module.parameters().size(), 1U);
}

TEST(Module, SavesAndLoadsItsBuffersUnderTheirPaths) {
  Parts model;
  Parts child;
  child.buffer("mean");
  model.child("child", child);
  State state;
  state.tensors["child.mean"] = tensor({3.0F, 4.0F});
  model.load(state);
  EXPECT_TRUE(test::same_bits(model.state().tensor("child.mean"), tensor({3.0F, 4.0F})));
  EXPECT_TRUE(model.parameters().empty());
}

// What before_forward gathered must be released also when the pass fails.
TEST(Module, RunsItsHookAfterAForwardPassThatThrows) {
  Linear linear(3, 2);
  std::vector<std::string> log;
  linear.set_hooks(
      {[&](Module&) { log.emplace_back("before"); }, [&](Module&) { log.emplace_back("after"); }});
  EXPECT_THROW(linear(ones({1, 4})), InvalidArgument);
  EXPECT_EQ(log, (std::vector<std::string>{"before", "after"}));
  linear(ones({1, 3}));
  EXPECT_EQ(log, (std::vector<std::string>{"before", "after", "before", "after"}));
}

TEST(EvaluationMode, GivesEachModuleItsOwnModeBack) {
  Parts frozen;
  Parts model;
  model.child("frozen", frozen);
  frozen.set_training(false);
  {
    const EvaluationMode evaluation(model);
    EXPECT_FALSE(model.training());
  }
  EXPECT_TRUE(model.training());
  EXPECT_FALSE(frozen.training());
}

// A mask is keyed by 32 bits of the module's path. Two modules with the same bits would drop the
// same places.
TEST(Dropout, ModulesOfADeepModelHaveNumbersOfTheirOwn) {
  std::set<uint32_t> numbers{dropout_number("dropout")};
  constexpr int kLayers = 1000;
  for (int i = 0; i < kLayers; ++i) {
    const std::string block = "h." + std::to_string(i);
    for (const char* part : {".attn.dropout", ".dropout_1", ".dropout_2"}) {
      numbers.insert(dropout_number((block + part).c_str()));
    }
  }
  EXPECT_EQ(numbers.size(), 3 * kLayers + 1U);
}

}  // namespace
}  // namespace faultline::nn
