#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace faultline {
namespace {

// With -ffast-math a compiler may take it that no NaN exists: detectors vanish, and 0 * inf is 0.
#ifdef __FAST_MATH__
#error "do not build with -ffast-math or -Ofast: NaN and infinity must keep their meaning"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "do not build with -ffinite-math-only"
#endif

// Volatile, so that the program computes it and not the compiler.
double runtime(double value) {
  volatile double hidden = value;
  return hidden;
}

TEST(BuildFlags, KeepNanAndInfinity) {
  const double infinity = runtime(std::numeric_limits<double>::infinity());
  const double nan = runtime(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(nan));
  EXPECT_FALSE(nan == nan);
  EXPECT_TRUE(std::isnan(infinity - infinity));
  EXPECT_TRUE(std::isnan(runtime(0) * infinity));
  EXPECT_FALSE(std::isfinite(infinity));
  EXPECT_EQ(std::log(std::exp(static_cast<float>(runtime(-200)))),
            -std::numeric_limits<float>::infinity());
}

TEST(BuildFlags, KeepSubnormalsAndSignedZero) {
  const float tiny = static_cast<float>(runtime(0x1p-149));
  EXPECT_GT(tiny, 0);
  EXPECT_EQ(tiny * 2, 0x1p-148F);
  EXPECT_TRUE(std::signbit(runtime(-0.0) * 1));
  EXPECT_TRUE(std::signbit(runtime(-0.0) + runtime(-0.0)));
}

// a * b + c with a * b not representable: contracted to one fused operation it gives 2^-60.
TEST(BuildFlags, DoNotContractProductsIntoFusedOperations) {
  const double a = runtime(1 + 0x1p-30);
  const double product = a * a;
  EXPECT_EQ(a * a - product, 0);
  const double b = runtime(1 + 0x1p-30);
  const double c = runtime(-(1 + 0x1p-29));
  EXPECT_EQ(b * b + c, 0);
}

// (1e16 + 1) - 1e16 is 0 in double; reassociation would make it 1.
TEST(BuildFlags, DoNotReassociateSums) {
  const double large = runtime(1e16);
  EXPECT_EQ((large + runtime(1)) - large, 0);
}

}  // namespace
}  // namespace faultline
