// The autocast column of core/ops.def.

#include <gtest/gtest.h>

#include <optional>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "tests/support/compare.h"

namespace faultline {
namespace {

class AutocastTo {
 public:
  explicit AutocastTo(DType dtype) : on_(Context::current().autocast, dtype) {}

 private:
  Scoped<std::optional<DType>> on_;
};

TEST(Autocast, RunsProductsInTheLowerPrecisionAndTheRestByItsColumn) {
  const Tensor x = normal({2, 3}, 0, 1, 1, 1);
  const Tensor low = cast(x, DType::bf16);
  const AutocastTo bf16(DType::bf16);
  EXPECT_EQ(matmul(x, ones({3, 4})).dtype(), DType::bf16);
  EXPECT_EQ(linear(x, ones({4, 3}), ones({4})).dtype(), DType::bf16);
  EXPECT_EQ(softmax(low).dtype(), DType::f32) << "full";
  EXPECT_EQ(exp(low).dtype(), DType::f32) << "full";
  EXPECT_EQ(sum(low).dtype(), DType::f32) << "full";
  EXPECT_EQ(gelu(low).dtype(), DType::bf16) << "any";
  EXPECT_EQ(gelu(x).dtype(), DType::f32) << "any";
  EXPECT_EQ(add(low, x).dtype(), DType::f32) << "promote";
  EXPECT_EQ(add(low, low).dtype(), DType::bf16) << "promote";
  EXPECT_EQ(add(low, cast(x, DType::f16)).dtype(), DType::f32) << "no common 16-bit type";
}

TEST(Autocast, NeverTouchesF64OrWholeNumbers) {
  const AutocastTo f16(DType::f16);
  EXPECT_EQ(matmul(ones({2, 2}, DType::f64), ones({2, 2}, DType::f64)).dtype(), DType::f64);
  EXPECT_EQ(sum(ones({3}, DType::i64)).dtype(), DType::i64);
  EXPECT_EQ(add(ones({3}, DType::i32), ones({3}, DType::i32)).dtype(), DType::i32);
}

// The result is that of casting by hand, and the leaf's gradient comes back in f32.
TEST(Autocast, GivesTheBitsOfCastsByHandAndGradientsInTheLeafsDtype) {
  const Tensor x = normal({5, 7}, 0, 1, 1, 1);
  const Tensor w = normal({3, 7}, 0, 1, 1, 2);
  set_requires_grad(w);
  const Tensor by_hand = linear(cast(x, DType::bf16), cast(w, DType::bf16));
  backward(by_hand, ones({5, 3}, DType::bf16));
  const Tensor expected = clone(gradient(w));
  clear_gradient(w);
  Tensor result;
  {
    const AutocastTo bf16(DType::bf16);
    result = linear(x, w);
  }
  EXPECT_TRUE(test::same_bits(result, by_hand));
  backward(result, ones({5, 3}, DType::bf16));
  EXPECT_EQ(gradient(w).dtype(), DType::f32);
  EXPECT_TRUE(test::same_bits(gradient(w), expected));
}

// A derivative runs in the precision of its forward pass, whether or not autocast is still on.
TEST(Autocast, InBackwardChangesNothing) {
  const auto gradient_with = [](bool on_in_backward) {
    const Tensor w = normal({3, 7}, 0, 1, 1, 2);
    set_requires_grad(w);
    std::optional<AutocastTo> on(DType::bf16);
    const Tensor loss = sum(gelu(linear(normal({5, 7}, 0, 1, 1, 1), w)));
    if (!on_in_backward) on.reset();
    backward(loss);
    return gradient(w);
  };
  EXPECT_TRUE(test::same_bits(gradient_with(true), gradient_with(false)));
}

// A forward pass in f32 has a backward in f32, also where autocast is on by then.
TEST(Autocast, OnlyInBackwardChangesNothing) {
  const auto gradient_with = [](bool on_in_backward) {
    const Tensor w = normal({3, 7}, 0, 1, 1, 2);
    set_requires_grad(w);
    const Tensor loss = sum(square(linear(normal({5, 7}, 0, 1, 1, 1), w)));
    std::optional<AutocastTo> on;
    if (on_in_backward) on.emplace(DType::bf16);
    backward(loss);
    return gradient(w);
  };
  EXPECT_TRUE(test::same_bits(gradient_with(true), gradient_with(false)));
}

}  // namespace
}  // namespace faultline
