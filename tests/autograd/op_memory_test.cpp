// What must not change a result: how tensors lie in memory, what fresh memory holds, the number of
// threads.

#include <gtest/gtest.h>

#include "core/context.h"
#include "tests/support/compare.h"
#include "tests/support/op_samples.h"
#include "tests/support/rounding.h"

namespace faultline::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16};

void expect_same_bits(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << "output " << i;
  }
}

// Outputs, and where there is a derivative the gradients too.
Tensors everything(const OpSample& sample, const Tensors& inputs) {
  Tensors result = sample.run(inputs);
  if (!has_gradient(sample)) return result;
  for (const Tensor& gradient : gradient_of(sample.run)(inputs)) result.push_back(gradient);
  return result;
}

// oneDNN has a routine for each way that a matrix can lie (row by row, column by column, neither),
// and each sums in an order of its own. Where the matrix starts never matters.
bool sums_in_another_order(const OpSample& sample, Layout layout) {
  const bool product = sample.op == "matmul" || sample.op == "linear";
  return product && (layout == Layout::transposed || layout == Layout::strided);
}

// The inputs are made by hand, so that what lies between their elements is NaN.
TEST(EveryOp, OnAViewGivesTheBitsOfItsContiguousCopy) {
  for (const OpSample& sample : op_samples()) {
    for (const DType dtype : kDTypes) {
      for (const Layout layout : kLayouts) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", sample.name(), name(dtype), name(layout)));
        const Tensors views = inputs_of(sample, dtype, layout);
        Tensors copies;
        for (const Tensor& input : views) copies.push_back(clone(input));
        const Tensors actual = everything(sample, views);
        const Tensors expected = everything(sample, copies);
        if (!sums_in_another_order(sample, layout)) {
          expect_same_bits(actual, expected);
          continue;
        }
        const test::Run run = [&](std::span<const Tensor> in) {
          return everything(sample, {in.begin(), in.end()});
        };
        EXPECT_TRUE(within(flattened(actual), flattened(expected),
                           rounding_bound(run, widened(copies), dtype)));
      }
    }
  }
}

// With every fresh block full of NaN a read before the first write would show; a write outside of a
// block breaks its guard.
TEST(EveryOp, ReadsNoFreshMemoryAndStaysInsideItsBlocks) {
  Context strict({.allocator = {.nan_fill = true, .canaries = true}});
  for (const OpSample& sample : op_samples()) {
    for (const DType dtype : kDTypes) {
      for (const Layout layout : {Layout::contiguous, Layout::strided}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", sample.name(), name(dtype), name(layout)));
        const Tensors expected = everything(sample, inputs_of(sample, dtype, layout));
        const ContextGuard guard(strict);
        expect_same_bits(everything(sample, inputs_of(sample, dtype, layout)), expected);
        EXPECT_NO_THROW(strict.allocator->check_canaries());
      }
    }
  }
  EXPECT_EQ(strict.allocator->stats().live_blocks, 0) << "something keeps memory";
}

TEST(EveryOp, GivesTheSameBitsForAnyNumberOfThreads) {
  Context one({.threads = 1});
  for (const OpSample& sample : op_samples()) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{}, {}", sample.name(), name(dtype)));
      Tensors expected;
      {
        const ContextGuard guard(one);
        expected = everything(sample, inputs_of(sample, dtype));
      }
      for (const int threads : {2, 4}) {
        Context several({.threads = threads});
        const ContextGuard guard(several);
        expect_same_bits(everything(sample, inputs_of(sample, dtype)), expected);
      }
    }
  }
}

// Sizes at which the kernels really cut their work: the samples above mostly fit in one piece.
TEST(LargeOps, GiveTheSameBitsForAnyNumberOfThreads) {
  const auto compute = [](int threads) {
    Context context({.threads = threads});
    const ContextGuard guard(context);
    const Tensor x = normal({130, 1537}, 0, 1, 1, 1);
    const Tensor w = normal({257, 1537}, 0, 0.05, 1, 2);
    const Tensor labels = cast(uniform({130}, 0, 257, 1, 3), DType::i64);
    const Tensor many = cast(uniform({5000}, 0, 130, 1, 4), DType::i64);
    for (const Tensor& leaf : {x, w}) set_requires_grad(leaf);
    const Tensor logits = linear(gelu(layer_norm(x, {}, {})), w);
    const Tensor loss = sum(cross_entropy_rows(logits, labels)) + sum(embedding(x, many));
    backward(loss + mean(softmax(x) * transpose(contiguous(transpose(x, 0, 1)), 0, 1)));
    return Tensors{logits, loss, gradient(x), gradient(w), cast(x, DType::bf16)};
  };
  const Tensors expected = compute(1);
  for (const int threads : {2, 3, 4}) expect_same_bits(compute(threads), expected);
}

}  // namespace
}  // namespace faultline::test
