#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "nn/gpt2.h"
#include "nn/lora.h"
#include "tests/nn/adapted_layer.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

using namespace test;
using faultline::test::same_bits;
using faultline::test::within;

TEST(LoraMerge, WeightIsWithinTheStatedBound) {
  Adapted own;
  const Values a = own.a().value().to_vector<double>();
  const Values b = own.b().value().to_vector<double>();
  const double s = own.adapter().scale();
  const auto sum = [&](const Values& left, const Values& right) {
    return times(s, product(left, transposed(right, Adapted::kIn), Adapted::kRank));
  };
  const Values expected = plus(own.weight(), sum(b, a));
  const Values sizes = sum(magnitudes(b), magnitudes(a));
  merge_adapters(own.layer, Originals::drop);
  const Values bound =
      plus(times(kUnit, magnitudes(own.weight())), times((Adapted::kRank + 2) * kUnit, sizes));
  EXPECT_TRUE(within(own.weight(), expected, bound));
}

// Each of the two orders of the same sums is within kTerms u of the magnitudes' sum.
TEST(LoraMerge, OutputIsThatOfTheAdapterBesideItsBase) {
  Adapted own;
  const Values sizes = plus(own.base(magnitudes), own.delta(magnitudes));
  const Values before = own.layer(own.x).to_vector<double>();
  merge_adapters(own.layer, Originals::keep);
  EXPECT_TRUE(
      within(own.layer(own.x).to_vector<double>(), before, times(2 * kTerms * kUnit, sizes)));
}

TEST(LoraMerge, IsUndoneBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Adapted own;
    own.layer.weight().set_value(cast(own.layer.weight().value().detach(), dtype));
    own.x = cast(own.x, dtype);
    const Tensor weight = clone(own.layer.weight().value());
    const Tensor output = own.layer(own.x).detach();
    const Merge merge = merge_adapters(own.layer, Originals::keep);
    EXPECT_FALSE(same_bits(own.layer.weight().value(), weight));
    unmerge_adapters(merge);
    EXPECT_TRUE(same_bits(own.layer.weight().value(), weight));
    EXPECT_TRUE(same_bits(own.layer(own.x).detach(), output));
  }
}

TEST(LoraMerge, KeepsAsManyBytesAsTheMergedWeightsTake) {
  Gpt2 model({.vocab_size = 32, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16},
             1);
  add_lora(model, "own", {.targets = {LoraTargets::Kind::suffixes, {"fc"}}}, model.dropout_key(),
           1);
  const auto live = [] { return Context::current().allocator->stats().live_bytes; };
  const int64_t before = live();
  {
    const Merge merge = merge_adapters(model, Originals::keep);
    EXPECT_EQ(live() - before, 2 * 64 * 16 * 4);
  }
  EXPECT_EQ(live(), before);
}

TEST(LoraMerge, IsRefusedTwiceAndChangesNothingThen) {
  Adapted own;
  const Merge merge = merge_adapters(own.layer, Originals::keep);
  const Tensor weight = clone(own.layer.weight().value());
  EXPECT_THROW(merge_adapters(own.layer, Originals::keep), InvalidArgument);
  EXPECT_THROW(activate(own.layer, {"own"}), InvalidArgument);
  EXPECT_THROW(add_lora(own.layer, "other", {}, own.key, 1), InvalidArgument);
  EXPECT_TRUE(same_bits(own.layer.weight().value(), weight));
  unmerge_adapters(merge);
  EXPECT_NO_THROW(merge_adapters(own.layer, Originals::drop));
}

TEST(LoraMerge, CannotBeUndoneWithoutTheOriginals) {
  Adapted own;
  const Merge merge = merge_adapters(own.layer, Originals::drop);
  EXPECT_THROW(unmerge_adapters(merge), InvalidArgument);
}

TEST(LoraMerge, TakesTheActiveAdaptersOnly) {
  Adapted own;
  add_lora(own.layer, "other", {.rank = 2}, own.key, 2);
  activate(own.layer, {"other"});  // its B is zero
  const Tensor weight = clone(own.layer.weight().value());
  merge_adapters(own.layer, Originals::drop);
  EXPECT_TRUE(same_bits(own.layer.weight().value(), weight));
  EXPECT_EQ(own.adapter().role(), AdapterRole::off);
  Adapted silent;
  activate(silent.layer, {});
  EXPECT_THROW(merge_adapters(silent.layer, Originals::drop), InvalidArgument);
}

TEST(LoraMerge, RefusesAProductThatIsNotFiniteBeforeAnyWeightChanges) {
  Gpt2 model({.vocab_size = 32, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16},
             1);
  add_lora(model, "own", {}, model.dropout_key(), 1);
  const auto layers = adapters_of(model, "own");
  const NoGrad off;
  for (const auto& [layer, adapter] : layers) fill_(adapter->parameters()[1]->value(), 0.1);
  fill_(layers.back().second->parameters()[1]->value(), std::numeric_limits<double>::infinity());
  const Tensor first = clone(layers.front().first->weight().value());
  EXPECT_THROW(merge_adapters(model, Originals::keep), InvalidArgument);
  EXPECT_TRUE(same_bits(layers.front().first->weight().value(), first));
  EXPECT_EQ(layers.front().second->role(), AdapterRole::active);
}

// Weights N(0, 0.02) in bf16, an update of standard deviation `size`: what share of the elements
// keeps every bit, and how much of the update is left.
LayerMerge merged_in_bf16(double size) {
  constexpr int64_t kWidth = 512;
  constexpr int64_t kRank = 64;
  Linear layer(kWidth, kWidth, Bias::no);
  layer.weight().set_value(cast(normal({kWidth, kWidth}, 0, 0.02, 1, 1), DType::bf16));
  add_lora(layer, "own", {.rank = kRank, .alpha = kRank}, DropoutKey(1), 1);
  const NoGrad off;
  const auto factors = layer.adapters().front()->parameters();
  // A sum of 64 products of deviation size / 8 has deviation size, and is nearly normal.
  copy_(factors[0]->value(), normal({kRank, kWidth}, 0, 1, 1, 2));
  copy_(factors[1]->value(), normal({kWidth, kRank}, 0, size / 8, 1, 3));
  return merge_adapters(layer, Originals::drop).layers.front();
}

// The figures of the same draw in NumPy. A share of 262,144 elements has a standard error below
// 0.001; the update's size varies by 1 in 500 with the 32,768 elements of each factor.
TEST(LoraMerge, ReportsWhatBf16Swallows) {
  const auto unchanged = [](const LayerMerge& merge) {
    return static_cast<double>(merge.unchanged) / static_cast<double>(merge.elements);
  };
  const LayerMerge small = merged_in_bf16(1e-5);
  EXPECT_NEAR(unchanged(small), 0.884, 0.006);
  EXPECT_NEAR(small.survived, 0.28, 0.03);
  const LayerMerge large = merged_in_bf16(1e-4);
  EXPECT_NEAR(unchanged(large), 0.32, 0.006);
  EXPECT_NEAR(large.survived, 0.99, 0.01);
  EXPECT_NEAR(merged_in_bf16(1e-6).survived, 0.03, 0.015);
}

}  // namespace
}  // namespace faultline::nn
