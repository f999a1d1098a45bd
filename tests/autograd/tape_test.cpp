#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "autograd/functional.h"
#include "core/context.h"

namespace faultline {
namespace {

Tensor leaf(std::initializer_list<float> values) {
  const Tensor x = tensor(values);
  set_requires_grad(x);
  return x;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

void expect_names(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

std::vector<float> gradient_of(const Tensor& x) { return gradient(x).to_vector<float>(); }

TEST(Backward, GoesThroughAHundredThousandNodesWithoutRecursion) {
  const Tensor x = leaf({1, 2});
  {
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = affine(y, 1, 0.5);
    backward(sum(y));
  }
  EXPECT_EQ(gradient_of(x), (std::vector<float>{1, 1}));
}

TEST(Backward, AHundredThousandNodesAreDestroyedWithoutRecursion) {
  Context context;
  const ContextGuard guard(context);
  {
    const Tensor x = leaf({1, 2});
    Tensor linear_chain = x;
    Tensor saving_chain = x;  // keeps its inputs on the tape
    for (int i = 0; i < 100000; ++i) {
      linear_chain = affine(linear_chain, 1, 0.5);
      saving_chain = mul(saving_chain, x);
    }
    EXPECT_GT(context.allocator->stats().live_blocks, 100000);
  }
  EXPECT_EQ(context.allocator->stats().live_blocks, 0);
}

TEST(Backward, FreesWhatTheTapeSavedAsItGoes) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = leaf({1, 2});
  const Tensor y = sum(exp(mul(square(x), x)));
  backward(y);
  // x, its gradient, and the root.
  EXPECT_EQ(context.allocator->stats().live_blocks, 3);
}

TEST(Backward, SumsTheContributionsOfATensorThatIsUsedTwice) {
  const Tensor x = leaf({3, -2});
  const Tensor y = mul(x, x) + x;
  backward(sum(mul(y, y)));
  // d (x^2 + x)^2 = 2 (x^2 + x) (2 x + 1). Exact in float.
  EXPECT_EQ(gradient_of(x), (std::vector<float>{2 * 12 * 7, 2 * 2 * -3}));
}

TEST(Backward, AddsToWhatALeafHoldsAlready) {
  const Tensor x = leaf({1, 2});
  backward(sum(mul(x, x)));
  backward(sum(x * 10));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{12, 14}));
  clear_gradient(x);
  EXPECT_FALSE(gradient(x).defined());
  backward(sum(x));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{1, 1}));
}

// Whoever holds an earlier gradient keeps its values.
TEST(Backward, NeverWritesIntoAGradientThatSomebodyElseHolds) {
  const Tensor x = leaf({1, 2});
  const Tensor seed = tensor({3.0F, 4.0F});
  backward(x * 1, seed);
  const Tensor held = gradient(x);
  const Tensor seen = held.detach();
  backward(x * 1, seed);
  EXPECT_EQ(held.to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(seen.to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(seed.to_vector<float>(), (std::vector<float>{3, 4})) << "nor into the seed";
  EXPECT_EQ(gradient_of(x), (std::vector<float>{6, 8}));
}

// add hands one gradient tensor to both of its inputs.
TEST(Backward, LeavesThatShareAGradientTensorDoNotShareLaterSums) {
  const Tensor a = leaf({1, 1});
  const Tensor b = leaf({2, 2});
  backward(sum(a + b));
  backward(sum(a * 5));
  EXPECT_EQ(gradient_of(a), (std::vector<float>{6, 6}));
  EXPECT_EQ(gradient_of(b), (std::vector<float>{1, 1}));
}

TEST(Backward, SumsOverWhatBroadcastingAdded) {
  const Tensor column = leaf({1, 2});
  const Tensor scalar = tensor({2.0F}, Shape{});
  set_requires_grad(scalar);
  const Tensor y = mul(reshape(column, {2, 1}), ones({3, 2, 5})) * scalar;
  backward(sum(y));
  EXPECT_EQ(gradient_of(column), (std::vector<float>{30, 30}));
  EXPECT_EQ(gradient(scalar).shape(), Shape{});
  EXPECT_EQ(gradient(scalar).item<float>(), 45);
}

TEST(Backward, ASecondTimeOverTheSameTapeThrows) {
  const Tensor x = leaf({1});
  const Tensor y = exp(square(x));
  backward(y);
  expect_names(error_of([&] { backward(y); }), {"exp", "tape_test.cpp", "forward pass again"});
  // A tape that shares only its lower part, too.
  const Tensor z = square(x);
  backward(z * 1);
  expect_names(error_of([&] { backward(z * 2); }), {"square"});
}

TEST(Backward, AskedOfTheWrongTensorSaysWhy) {
  const Tensor x = leaf({1, 2});
  expect_names(error_of([&] { backward(x * 2); }), {"f32[2]", "seed"});
  expect_names(error_of([&] { backward(x * 2, zeros({3})); }), {"f32[3]", "f32[2]"});
  expect_names(error_of([&] { backward(x * 2, zeros({2}, DType::f64)); }), {"f64[2]", "f32[2]"});
  expect_names(error_of([] { backward(zeros({})); }), {"does not require a gradient"});
  expect_names(error_of([] { set_requires_grad(zeros({2}, DType::i64)); }), {"i64[2]"});
  expect_names(error_of([&] { set_requires_grad(x * 2); }), {"affine", "detach"});
}

TEST(Backward, OfALeafItselfIsItsSeed) {
  const Tensor x = leaf({1, 2});
  backward(x, tensor({5.0F, 6.0F}));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{5, 6}));
}

TEST(SavedTensor, ChangedInPlaceMakesBackwardThrowNamingBothOps) {
  const Tensor x = leaf({1, 2});
  const Tensor y = exp(x);
  const Tensor z = sum(mul(y, y));
  {
    const NoGrad off;
    fill_(y, 0);
  }
  expect_names(error_of([&] { backward(z); }), {"fill_", "mul", "tape_test.cpp", "in place"});
}

// The same through a view, and for an output that the derivative reads.
TEST(SavedTensor, ChangedThroughAViewOrAsAnOutputIsSeenToo) {
  const Tensor x = leaf({1, 2});
  const Tensor y = exp(x);
  const Tensor z = sum(y);
  {
    const NoGrad off;
    copy_(slice(y, 0, 0, 1), zeros({1}));
  }
  expect_names(error_of([&] { backward(z); }), {"output 0", "exp", "copy_"});
}

TEST(SavedTensor, ThatNoDerivativeReadsMayBeChanged) {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 3;
  const Tensor z = sum(y);
  {
    const NoGrad off;
    fill_(y, 0);
  }
  backward(z);
  EXPECT_EQ(gradient_of(x), (std::vector<float>{3, 3}));
}

TEST(Leaf, CannotBeWrittenInPlaceWhileGradientsAreOn) {
  const Tensor x = leaf({1, 2});
  expect_names(error_of([&] { fill_(x, 1); }), {"fill_", "f32[2]", "NoGrad"});
  expect_names(error_of([&] { copy_(x, zeros({2})); }), {"copy_"});
  expect_names(error_of([&] { accumulate_(x, zeros({2})); }), {"accumulate_"});
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2}));
  const NoGrad off;
  fill_(x, 1);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(NoGrad, KeepsOpsOffTheTape) {
  const Tensor x = leaf({1, 2});
  std::optional<NoGrad> off;
  off.emplace();
  const Tensor y = x * 2;
  off.reset();
  EXPECT_FALSE(requires_grad(y));
  EXPECT_TRUE(requires_grad(x * 2));
  EXPECT_STREQ(producer_name(x * 2), "affine");
  EXPECT_STREQ(producer_name(x), "");
}

TEST(Detach, EndsThePathAndSharesTheElements) {
  const Tensor x = leaf({2, 3});
  const Tensor y = x * 2;
  EXPECT_TRUE(y.detach().same_storage(y));
  backward(sum(mul(y, y.detach())));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{8, 12}));
}

TEST(Gradients, TouchNoLeafAndGiveZerosWhereThereIsNoPath) {
  const Tensor x = leaf({1, 2});
  const Tensor unused = leaf({7});
  backward(sum(x * 10));
  const std::vector<Tensor> found = gradients(sum(mul(x, x)), std::vector<Tensor>{x, unused});
  EXPECT_EQ(found[0].to_vector<float>(), (std::vector<float>{2, 4}));
  EXPECT_EQ(found[1].to_vector<float>(), (std::vector<float>{0}));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{10, 10}));
  EXPECT_FALSE(gradient(unused).defined());
  expect_names(error_of([&] { gradients(sum(x), std::vector<Tensor>{zeros({2})}); }), {"leaf"});
}

TEST(Hooks, SeeTheFinishedGradientOnce) {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  std::vector<std::vector<float>> seen;
  add_gradient_hook(x, [&](const Tensor& g) { seen.push_back(g.to_vector<float>()); });
  add_gradient_hook(y, [&](const Tensor& g) { seen.push_back(g.to_vector<float>()); });
  // Both leaf and y get two contributions.
  backward(sum(y) + sum(y * 3) + sum(x));
  EXPECT_EQ(seen, (std::vector<std::vector<float>>{{4, 4}, {9, 9}}));
}

TEST(Hooks, CannotChangeAGradient) {
  const Tensor x = leaf({1, 2});
  x.autograd()->name = "w";
  add_gradient_hook(x, [](const Tensor& g) { fill_(g, 0); });
  expect_names(error_of([&] { backward(sum(x * 2)); }), {"hook", "w", "fill_", "only look"});
  const Tensor a = leaf({1, 2});
  const Tensor b = exp(a);
  add_gradient_hook(b, [](const Tensor& g) {
    Tensor copy = g;
    copy.mutable_data<float>("intruder")[0] = 5;
  });
  expect_names(error_of([&] { backward(sum(b * 2)); }), {"hook", "exp", "intruder"});
}

TEST(Hooks, NeedATensorWithAGradient) {
  expect_names(error_of([] { add_gradient_hook(zeros({2}), [](const Tensor&) {}); }), {"f32[2]"});
}

// The engine undoes casts at the edge: an f32 leaf of a bf16 computation has an f32 gradient.
TEST(Backward, GivesEachLeafItsOwnDtype) {
  const Tensor x = leaf({1, 2});
  backward(sum(cast(mul(cast(x, DType::bf16), cast(x, DType::bf16)), DType::f32)));
  EXPECT_EQ(gradient(x).dtype(), DType::f32);
  EXPECT_EQ(gradient_of(x), (std::vector<float>{2, 4}));
}

// Ties share the gradient; a branch that where() does not take gets an exact zero, not 0 * NaN.
TEST(Backward, SharesTiesAndKeepsBlockedBranchesClean) {
  const Tensor a = leaf({1, 5, 2});
  const Tensor b = leaf({1, 4, 3});
  backward(sum(maximum(a, b)));
  EXPECT_EQ(gradient_of(a), (std::vector<float>{0.5, 1, 0}));
  EXPECT_EQ(gradient_of(b), (std::vector<float>{0.5, 0, 1}));
  const Tensor x = leaf({2, 7, 7, 1});
  backward(amax(x));
  EXPECT_EQ(gradient_of(x), (std::vector<float>{0, 0.5, 0.5, 0}));
  const Tensor bad = leaf({0, 4});
  backward(sum(where(tensor({false, true}), sqrt(bad), zeros({2}))));
  EXPECT_TRUE(std::isnan(gradient_of(bad)[0])) << "sqrt has slope infinity: 0 * infinity";
  EXPECT_EQ(gradient_of(bad)[1], 0.25F);
  const Tensor c = leaf({1, 1});
  const float nan = std::nanf("");
  backward(sum(where(tensor({true, false}), c, zeros({2}))), tensor({nan}, Shape{}));
  EXPECT_EQ(gradient_of(c)[1], 0.0F);
}

}  // namespace
}  // namespace faultline
