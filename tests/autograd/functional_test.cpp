#include "autograd/functional.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/context.h"
#include "tests/support/compare.h"
#include "tests/support/recording_device.h"

// Promises of functional.h and parameter.h that no sample of an op shows.
namespace faultline {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool names(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return false;
  }
  return true;
}

Tensor leaf(std::initializer_list<float> values) {
  const Tensor x = tensor(values);
  set_requires_grad(x);
  return x;
}

// ---- writes in place ----------------------------------------------------------------------------

TEST(WriteInPlace, BetweenOverlappingViewsReadsEveryElementBeforeItChanges) {
  // More than one tile of the copy and more than one block of the sum.
  const Tensor x = normal({70, 70}, 0, 1, 1, 1);
  const Tensor expected = contiguous(transpose(x, 0, 1));
  copy_(x, transpose(x, 0, 1));
  EXPECT_TRUE(test::same_bits(x, expected));

  const Tensor y = arange(3000, 0, 1, DType::f32);
  accumulate_(slice(y, 0, 1, 3000), slice(y, 0, 0, 2999));
  std::vector<float> sums(3000, 0);
  for (size_t i = 1; i < sums.size(); ++i) sums[i] = 2 * static_cast<float>(i) - 1;
  EXPECT_EQ(y.to_vector<float>(), sums);
}

TEST(WriteInPlace, OntoItselfIsAllowed) {
  const Tensor x = tensor({1.0F, 2.0F, 3.0F});
  copy_(x, x);
  accumulate_(x, x);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 4, 6}));
}

// Several indices share an element: what it would hold depends on who writes last.
TEST(WriteInPlace, IntoRepeatedElementsIsRefused) {
  const Tensor x = ones({3, 1});
  const Tensor repeated = expand(x, {3, 4});
  EXPECT_TRUE(names(error_of([&] { copy_(repeated, zeros({3, 4})); }), {"copy_", "f32[3, 4]"}));
  EXPECT_TRUE(names(error_of([&] { fill_(repeated, 0); }), {"fill_", "clone"}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1, 1}));
  fill_(expand(x, {3, 1}), 2);  // nothing is repeated here
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

TEST(WriteInPlace, TakesTensorsOfOneDevice) {
  test::RecordingDevice device;
  Context context({.device = &device});
  const Tensor here = ones({2});
  const ContextGuard guard(context);
  const Tensor there = ones({2});
  EXPECT_TRUE(names(error_of([&] { copy_(here, there); }), {"copy_", "cpu", "recording"}));
  EXPECT_TRUE(names(error_of([&] { accumulate_(there, here); }), {"accumulate_", "cpu"}));
}

// ---- layout -------------------------------------------------------------------------------------

TEST(Expand, RefusesANegativeSize) {
  EXPECT_TRUE(names(error_of([] { expand(ones({1}), {-1}); }), {"negative", "[-1]"}));
}

TEST(Reshape, RefusesSizesWhoseProductOverflows) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_TRUE(names(error_of([&] { reshape(ones({4}), {huge, huge, -1}); }), {"2^63"}));
}

// ---- reductions ---------------------------------------------------------------------------------

TEST(Sum, OfIntegersAndBoolsCountsInI64) {
  const Tensor flags = sum(tensor({true, true, false, true}));
  EXPECT_EQ(flags.dtype(), DType::i64);
  EXPECT_EQ(flags.item<int64_t>(), 3);
  EXPECT_EQ(sum(full({3}, 200, DType::u8)).item<int64_t>(), 600);
  const int32_t most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(sum(tensor({most, most})).item<int64_t>(), 2 * static_cast<int64_t>(most));
  EXPECT_EQ(sum(tensor({1.0F})).dtype(), DType::f32);
}

// ---- gradients ----------------------------------------------------------------------------------

TEST(Gradients, ShareNoMemoryWithEachOtherOrTheSeed) {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({3, 4});
  const Tensor seed = tensor({5.0F, 6.0F});
  const auto found = gradients(a + b, std::vector<Tensor>{a, b, a}, seed);
  fill_(found[0], 0);
  EXPECT_EQ(found[1].to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(found[2].to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(seed.to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_TRUE(gradients(sum(a), std::vector<Tensor>{a})[0].is_contiguous());
}

TEST(Gradients, AskedOfATensorThatIsNoLeafLeaveTheTapeUsable) {
  const Tensor x = leaf({1, 2});
  const Tensor y = sum(square(x));
  EXPECT_TRUE(names(error_of([&] { gradients(y, std::vector<Tensor>{x * 2}); }), {"leaf"}));
  backward(y);
  EXPECT_EQ(gradient(x).to_vector<float>(), (std::vector<float>{2, 4}));
}

// Mean and deviation are outputs for the derivative to read; their own gradient is not computed,
// and must not be dropped in silence.
TEST(LayerNorm, ThrowsWhenAGradientReachesItsStatistics) {
  const Tensor x = leaf({1, 2, 4});
  const Tensor inputs[] = {x, Tensor(), Tensor()};
  const Outputs out = apply(definition(Op::layer_norm), inputs, LayerNormAttributes{});
  const Tensor loss = sum(out[0]) + sum(out[1]);
  EXPECT_TRUE(names(error_of([&] { backward(loss); }), {"layer_norm", "mean"}));
}

// ---- ops outside the tree -----------------------------------------------------------------------

void copy_kernel(const KernelArgs& args) { *args.outputs[0].as<float>() = 1; }
constexpr OpRules kLikeInput{
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
    }};

OpDefinition one_kernel(int inputs) {
  return {.name = "one_kernel",
          .inputs = inputs,
          .outputs = 1,
          .differentiable = 0,
          .saved_inputs = 0,
          .saved_outputs = 0,
          .autocast = Autocast::any,
          .determinism = Determinism::same_bits,
          .kernels = Kernels::fast,
          .rules = &kLikeInput,
          .cpu = {"one_kernel", &copy_kernel},
          .reference = {"one_kernel/reference", nullptr}};
}

TEST(CustomOp, WithoutAKernelForADtypeSaysWhatToDo) {
  const OpDefinition op = one_kernel(1);
  const Tensor single[] = {ones({1}, DType::f64)};
  EXPECT_TRUE(names(error_of([&] { apply(op, single); }), {"one_kernel", "f64", "cast"}));
}

TEST(CustomOp, WithMoreInputsThanALaunchHoldsIsRefused) {
  const OpDefinition op = one_kernel(kMaxInputs + 1);
  const std::vector<Tensor> many(kMaxInputs + 1, ones({1}));
  EXPECT_TRUE(names(error_of([&] { faultline::apply(op, many); }),
                    {"one_kernel", std::to_string(kMaxInputs)}));
}

// ---- parameters ---------------------------------------------------------------------------------

TEST(Parameter, KeepsItsValueWhenANewOneIsRefused) {
  Parameter parameter("w", ones({2}), Decay::yes);
  EXPECT_THROW(parameter.set_value(zeros({2}, DType::i64)), InvalidArgument);
  EXPECT_THROW(parameter.set_value(leaf({1, 2}) * 2), InvalidArgument);
  EXPECT_EQ(parameter.value().dtype(), DType::f32);
  EXPECT_EQ(parameter.value().to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(Parameter, ThatIsNotTrainableCollectsNoGradient) {
  Parameter parameter("w", ones({2}), Decay::yes);
  parameter.set_trainable(false);
  EXPECT_FALSE(requires_grad(parameter.value() * 2));
  parameter.set_value(zeros({2}));
  EXPECT_FALSE(requires_grad(parameter.value() * 2)) << "a new value, the same parameter";
  parameter.set_trainable(true);
  backward(sum(parameter.value()));
  EXPECT_EQ(parameter.gradient().to_vector<float>(), (std::vector<float>{1, 1}));
}

// ---- questions ----------------------------------------------------------------------------------

TEST(AllFinite, SeesOneInfinityOrNan) {
  const Tensor x = ones({300});
  EXPECT_TRUE(all_finite(x));
  EXPECT_TRUE(all_finite(ones({0})));
  EXPECT_TRUE(all_finite(arange(3)));
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const Tensor y = clone(x);
    fill_(slice(y, 0, 299, 300), bad);
    EXPECT_FALSE(all_finite(y));
  }
}

}  // namespace
}  // namespace faultline
