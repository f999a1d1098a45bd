#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/reference_arguments.h"

namespace faultline {
namespace {
using testing::KernelCall;
using Complex = std::complex<double>;

struct UnaryKernel {
  const char* name;
  Kernel value;
  Kernel backward;
};
const UnaryKernel kUnary[] = {
#define FAULTLINE_UNARY(name, autocast) {#name, &reference::name, &reference::name##_backward},
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
};

bool needs_positive(const std::string& name) {
  return name == "sqrt" || name == "rsqrt" || name == "log";
}

// The derivative by complex step, Im f(x + ih) / h with h = 1e-20, has no cancellation: it and the
// slope carry a few roundings each. 1e-12 leaves room for the conditioning at |x| <= 6.
TEST(ReferenceUnary, SlopeIsTheComplexStepDerivative) {
  for (const UnaryKernel& kernel : kUnary) {
    std::vector<double> x;
    for (double v = -6.05; v < 6.1; v += 0.1) {
      if (v > 0 || !needs_positive(kernel.name)) x.push_back(v);
    }
    const Shape shape = {static_cast<int64_t>(x.size())};
    std::vector<Complex> stepped;
    for (const double v : x) stepped.emplace_back(v, 1e-20);
    const auto y = KernelCall().in(x, shape).out<double>(shape).run<double>(kernel.value);
    const auto f = KernelCall().in(stepped, shape).out<Complex>(shape).run<Complex>(kernel.value);
    const auto dx = KernelCall()
                        .in(std::vector<double>(x.size(), 2.0), shape)
                        .in(x, shape)
                        .in(y, shape)
                        .out<double>(shape)
                        .run<double>(kernel.backward);
    for (size_t i = 0; i < x.size(); ++i) {
      const double derivative = f[i].imag() / 1e-20;
      ASSERT_TRUE(std::abs(dx[i] - 2 * derivative) <= 1e-12 * std::max(1.0, std::abs(derivative)))
          << kernel.name << "(" << x[i] << "): slope " << dx[i] / 2 << ", complex step "
          << derivative;
      // The formulas of complex numbers differ from those of reals by a few roundings.
      ASSERT_TRUE(std::abs(f[i].real() - y[i]) <= 1e-14 * std::max(1.0, std::abs(y[i])))
          << kernel.name << "(" << x[i] << ")";
    }
  }
}

TEST(ReferenceUnary, CarriesNan) {
  for (const UnaryKernel& kernel : kUnary) {
    const std::vector<double> x = {std::numeric_limits<double>::quiet_NaN()};
    EXPECT_TRUE(std::isnan(KernelCall().in(x, {1}).out<double>({1}).run<double>(kernel.value)[0]))
        << kernel.name;
  }
}

// 16-bit results are rounded once from double: through f32 this one would round twice.
TEST(ReferenceUnary, RoundsOnce) {
  // Halfway between two bf16 numbers plus 2^-30: up. Rounded to f32 first, the tie goes to even.
  const std::vector<double> x = {1.0 + 0x1p-8 + 0x1p-30};
  const auto y = KernelCall().in(x, {1}).out<bfloat16>({1}).run<bfloat16>(&reference::relu);
  EXPECT_EQ(static_cast<float>(y[0]), 1.0F + 0x1p-7F);
}

TEST(ReferenceUnary, TakesAnyLayout) {
  KernelCall call;
  TensorView x = call.view_of(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3});
  const TensorView columns = transposed(x);
  EXPECT_EQ(call.in(columns).out<double>({3, 2}).run<double>(&reference::neg),
            (std::vector<double>{-1, -4, -2, -5, -3, -6}));
  EXPECT_EQ(
      KernelCall().in(std::vector<double>{2}, {}).out<double>({}).run<double>(&reference::square),
      (std::vector<double>{4}));
  EXPECT_TRUE(KernelCall()
                  .in(std::vector<double>{}, {0, 3})
                  .out<double>({0, 3})
                  .run<double>(&reference::square)
                  .empty());
}

}  // namespace
}  // namespace faultline
