#include "autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"

namespace faultline {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// y = 3 x with a derivative that somebody gets wrong by `kPercent` percent at element 2.
template <int kPercent>
struct Tripled {
  static Grads derivative(const Saved&, std::span<const Tensor> grads) {
    std::vector<double> slopes(static_cast<size_t>(grads[0].numel()), 3.0);
    if (slopes.size() > 2) slopes[2] *= 1 + kPercent / 100.0;
    return {grads[0] * tensor(slopes, grads[0].shape())};
  }
  static void shape(std::span<const Tensor> inputs, const Attributes&,
                    std::span<OutputSpec> outputs) {
    outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
  }
  static void run(const KernelArgs& args) {
    with_type(args.inputs[0].dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>) {
        for (int64_t i = 0; i < args.inputs[0].numel(); ++i) {
          args.outputs[0].as<T>()[i] = 3.0 * args.inputs[0].as<T>()[i];
        }
      }
    });
  }
  static constexpr OpRules kRules{.shape = shape, .derivative = derivative};
  static constexpr OpDefinition kOp{.name = "tripled",
                                    .inputs = 1,
                                    .outputs = 1,
                                    .differentiable = 1,
                                    .saved_inputs = 0,
                                    .saved_outputs = 0,
                                    .autocast = Autocast::any,
                                    .determinism = Determinism::same_bits,
                                    .kernels = Kernels::reference,
                                    .rules = &kRules,
                                    .cpu = {"tripled", nullptr},
                                    .reference = {"tripled/reference", run}};
  static Tensor apply_to(std::span<const Tensor> inputs) { return apply(kOp, inputs)[0]; }
};

std::vector<Tensor> one_input() { return {tensor({0.5, -1.0, 2.0, 1.5}, {2, 2})}; }

TEST(Gradcheck, AcceptsARightDerivative) {
  EXPECT_TRUE(gradcheck(Tripled<0>::apply_to, one_input()).passed());
  const GradcheckReport report = complex_step(Tripled<0>::apply_to, one_input());
  EXPECT_TRUE(report.passed());
  // The random combination and each of the four outputs, for four elements.
  EXPECT_EQ(report.compared, 20);
  EXPECT_EQ(report.text(), "20 gradient elements agree with complex step");
}

TEST(Gradcheck, NamesInputElementAndBothValuesOfAWrongDerivative) {
  for (const auto& check : {gradcheck, complex_step}) {
    const GradcheckReport report = check(Tripled<1>::apply_to, one_input());
    ASSERT_EQ(report.mismatches.size(), 2U) << "by the combination and by output 2";
    const GradientMismatch& worst = report.mismatches[0];
    EXPECT_EQ(worst.input, 0);
    EXPECT_EQ(worst.element, 2);
    EXPECT_NEAR(worst.reverse / worst.expected, 1.01, 1e-6);
    EXPECT_NE(report.text().find("input 0, element 2"), std::string::npos) << report.text();
  }
}

// What one input element lends to another shows only in single outputs, or in a combination whose
// weights differ.
TEST(Gradcheck, CatchesSwappedInputs) {
  const auto f = [](std::span<const Tensor> in) { return in[0] - in[1]; };
  EXPECT_TRUE(gradcheck(f, {tensor({1.0, 2.0}), tensor({3.0, 5.0})}).passed());
  // d(a b) with the gradients of a and b exchanged, made with detach.
  const auto swapped = [](std::span<const Tensor> in) {
    const Tensor& a = in[0];
    const Tensor& b = in[1];
    const Tensor value = (a * b).detach();
    return value + a * a.detach() + b * b.detach() - (a * a).detach() - (b * b).detach();
  };
  EXPECT_FALSE(gradcheck(swapped, {tensor({1.0, 2.0}), tensor({3.0, 5.0})}).passed());
  EXPECT_FALSE(complex_step(swapped, {tensor({1.0, 2.0}), tensor({3.0, 5.0})}).passed());
}

TEST(Gradcheck, FailsOnNanAnywhere) {
  const auto poisoned = [](std::span<const Tensor> in) {
    return in[0] * full(in[0].shape(), kNan, in[0].dtype());
  };
  EXPECT_FALSE(gradcheck(poisoned, one_input()).passed());
  EXPECT_FALSE(complex_step(poisoned, one_input()).passed());
  // A NaN in one output only: the others do not hide it.
  const auto partly = [](std::span<const Tensor> in) { return log(in[0]); };
  EXPECT_FALSE(gradcheck(partly, one_input()).passed()) << "log of -1";
}

TEST(Gradcheck, TakesWholeNumbersAsConstantsAndManyOutputs) {
  const auto f = [](std::span<const Tensor> in) { return index_select(in[0], 0, in[1]); };
  const Tensor rows = tensor({int64_t{1}, int64_t{0}, int64_t{1}});
  const GradcheckReport report = complex_step(f, {normal({2, 3}, 0, 1, 5, 5, DType::f64), rows});
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.compared, 6 * (1 + 9));
  // Beyond 64 outputs only the combination is compared.
  const auto wide = [](std::span<const Tensor> in) { return expand(in[0], {13, 5}); };
  EXPECT_EQ(gradcheck(wide, {normal({5}, 0, 1, 5, 5, DType::f64)}).compared, 5);
}

TEST(Gradcheck, RefusesWhatItCannotJudge) {
  const auto same = [](std::span<const Tensor> in) { return in[0] * 2; };
  EXPECT_THROW(gradcheck(same, {tensor({1.0F})}), InvalidArgument);
  const auto narrowed = [](std::span<const Tensor> in) { return cast(in[0], DType::f32); };
  EXPECT_THROW(gradcheck(narrowed, one_input()), InvalidArgument);
  const auto loses_imaginary = [](std::span<const Tensor> in) { return cast(in[0], DType::f64); };
  EXPECT_THROW(complex_step(loses_imaginary, one_input()), InvalidArgument);
  EXPECT_FALSE(gradcheck(same, {zeros({0}, DType::f64)}).passed()) << "nothing was compared";
}

TEST(Gradcheck, TouchesNoGradientOfItsInputsAndWorksWithGradientsOff) {
  const Tensor x = tensor({1.0, 2.0});
  set_requires_grad(x);
  const NoGrad off;
  EXPECT_TRUE(gradcheck([](std::span<const Tensor> in) { return square(in[0]); }, {x}).passed());
  EXPECT_FALSE(gradient(x).defined());
}

}  // namespace
}  // namespace faultline
