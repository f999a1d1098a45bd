#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/reference_arguments.h"

namespace faultline {
namespace {
using testing::KernelCall;
using Complex = std::complex<double>;
using Doubles = std::vector<double>;
using Longs = std::vector<int64_t>;
using Bools = std::vector<bool>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T, class Out = T>
std::vector<Out> binary(Kernel kernel, const std::vector<T>& a, const std::vector<T>& b) {
  const Shape shape = {static_cast<int64_t>(a.size())};
  return KernelCall().in(a, shape).in(b, shape).template out<Out>(shape).template run<Out>(kernel);
}

TEST(ReferenceArithmetic, OfDoublesIsExact) {
  EXPECT_EQ(binary<double>(&reference::add, {1, 2}, {3, -5}), (Doubles{4, -3}));
  EXPECT_EQ(binary<double>(&reference::sub, {1, 2}, {3, -5}), (Doubles{-2, 7}));
  EXPECT_EQ(binary<double>(&reference::mul, {1, 2}, {3, -5}), (Doubles{3, -10}));
  EXPECT_EQ(binary<double>(&reference::div, {1, 2}, {4, 0}), (Doubles{0.25, kInfinity}));
}

// 2^53 + 1 is no double: integers must not pass through one.
TEST(ReferenceArithmetic, OfIntegersIsExactAndWraps) {
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(binary<int64_t>(&reference::add, {kOdd, kMost}, {2, 1}),
            (Longs{kOdd + 2, std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(binary<int64_t>(&reference::mul, {kOdd}, {3}), (Longs{3 * kOdd}));
  EXPECT_EQ(binary<int64_t>(&reference::maximum, {kOdd}, {kOdd - 1}), (Longs{kOdd}));
  EXPECT_EQ((binary<int64_t, bool>(&reference::equal, {kOdd}, {kOdd - 1})), (Bools{false}));
  const Attributes triple = AffineAttributes{.scale = 3, .offset = -1};
  EXPECT_EQ(KernelCall()
                .in(Longs{kOdd}, {1})
                .out<int64_t>({1})
                .with(triple)
                .run<int64_t>(&reference::affine),
            (Longs{3 * kOdd - 1}));
}

TEST(ReferenceArithmetic, BroadcastsBothWays) {
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 3}, {3, 1})
                .in(Doubles{10, 20}, {2})
                .out<double>({3, 2})
                .run<double>(&reference::add),
            (Doubles{11, 21, 12, 22, 13, 23}));
}

TEST(ReferenceArithmetic, ExtremesKeepNan) {
  const auto most = binary<double>(&reference::maximum, {1, kNan, 2}, {3, 0, kNan});
  EXPECT_EQ(most[0], 3);
  EXPECT_TRUE(std::isnan(most[1]));
  EXPECT_TRUE(std::isnan(most[2]));
  const auto least = binary<double>(&reference::minimum, {1, kNan, 2}, {3, 0, kNan});
  EXPECT_EQ(least[0], 1);
  EXPECT_TRUE(std::isnan(least[1]));
  EXPECT_TRUE(std::isnan(least[2]));
}

// A complex step must neither change a decision nor be lost by it.
TEST(ReferenceArithmetic, ExtremesCompareRealParts) {
  EXPECT_EQ(binary<Complex>(&reference::maximum, {{1, 9}}, {{2, 1e-20}}),
            (std::vector<Complex>{{2, 1e-20}}));
}

TEST(ReferenceArithmetic, ComparisonsWithNanAreFalse) {
  EXPECT_EQ((binary<double, bool>(&reference::less, {1, 2, kNan}, {2, 2, 1})),
            (Bools{true, false, false}));
  EXPECT_EQ((binary<double, bool>(&reference::less_equal, {1, 2, kNan}, {2, 2, kNan})),
            (Bools{true, true, false}));
  EXPECT_EQ((binary<double, bool>(&reference::equal, {1, kNan}, {1, kNan})), (Bools{true, false}));
}

TEST(ReferenceArithmetic, LogicTreatsAnythingButZeroAsTrue) {
  EXPECT_EQ((binary<double, bool>(&reference::logical_and, {1, 0.5, 0}, {-1, 0, 1})),
            (Bools{true, false, false}));
  EXPECT_EQ(
      KernelCall().in(Bools{true, false}, {2}).out<bool>({2}).run<bool>(&reference::logical_not),
      (Bools{false, true}));
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, kNan, kInfinity, -kInfinity}, {4})
                .out<bool>({4})
                .run<bool>(&reference::isfinite),
            (Bools{true, false, false, false}));
}

TEST(ReferenceArithmetic, WhereLeavesTheOtherBranchAlone) {
  EXPECT_EQ(KernelCall()
                .in(Bools{true, false}, {2})
                .in(Doubles{1, kNan}, {2})
                .in(Doubles{kNan, 4}, {2})
                .out<double>({2})
                .run<double>(&reference::where),
            (Doubles{1, 4}));
}

TEST(ReferenceReduction, SumsOverAnyDimensions) {
  const Doubles x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto sum = [&](uint32_t dims, const Shape& shape) {
    return KernelCall()
        .in(x, {2, 3, 2})
        .out<double>(shape)
        .with(ReduceAttributes{dims})
        .run<double>(&reference::sum);
  };
  EXPECT_EQ(sum(0b000, {2, 3, 2}), x);
  EXPECT_EQ(sum(0b001, {1, 3, 2}), (Doubles{8, 10, 12, 14, 16, 18}));
  EXPECT_EQ(sum(0b101, {1, 3, 1}), (Doubles{18, 26, 34}));
  EXPECT_EQ(sum(0b010, {2, 1, 2}), (Doubles{9, 12, 27, 30}));
  EXPECT_EQ(sum(0b111, {1, 1, 1}), (Doubles{78}));
}

TEST(ReferenceReduction, OfNothing) {
  const auto reduce = [](Kernel kernel) {
    return KernelCall()
        .in(Doubles{}, {2, 0})
        .out<double>({2, 1})
        .with(ReduceAttributes{2})
        .run<double>(kernel);
  };
  EXPECT_EQ(reduce(&reference::sum), (Doubles{0, 0}));
  for (const double mean : reduce(&reference::mean)) EXPECT_TRUE(std::isnan(mean));
  EXPECT_THROW(reduce(&reference::amax), InvalidArgument);
}

TEST(ReferenceReduction, GreatestIsTheFirstNanOrTheFirstOfEquals) {
  const Doubles x = {1, 5, 5, kNan, 7, kNan, -3, -2, -2};
  const auto greatest = KernelCall()
                            .in(x, {3, 3})
                            .out<double>({3, 1})
                            .with(ReduceAttributes{2})
                            .run<double>(&reference::amax);
  EXPECT_EQ(greatest[0], 5);
  EXPECT_TRUE(std::isnan(greatest[1]));
  EXPECT_EQ(greatest[2], -2);
  for (const Shape& shape : {Shape{3, 1}, Shape{3}}) {
    EXPECT_EQ(KernelCall()
                  .in(x, {3, 3})
                  .out<int64_t>(shape)
                  .with(DimAttributes{1})
                  .run<int64_t>(&reference::argmax),
              (Longs{1, 0, 1}));
  }
  EXPECT_EQ(KernelCall()
                .in(x, {3, 3})
                .out<int64_t>({1, 3})
                .with(DimAttributes{0})
                .run<int64_t>(&reference::argmax),
            (Longs{1, 1, 1}));
}

TEST(ReferenceProduct, MatchesHandComputation) {
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 3, 4}, {2, 2})
                .in(Doubles{5, 6, 7, 8}, {2, 2})
                .out<double>({2, 2})
                .run<double>(&reference::matmul),
            (Doubles{19, 22, 43, 50}));
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 3, 4}, {2, 1, 2})
                .in(Doubles{5, 6, 7, 8, 9, 10}, {3, 2})
                .in(Doubles{100, 200, 300}, {3})
                .out<double>({2, 1, 3})
                .run<double>(&reference::linear),
            (Doubles{117, 223, 329, 139, 253, 367}));
}

// The derivative of a product in the direction of b is a b': no conjugate may appear.
TEST(ReferenceProduct, IsAnalytic) {
  const Complex i(0, 1);
  EXPECT_EQ(KernelCall()
                .in(std::vector<Complex>{2.0 + i}, {1, 1})
                .in(std::vector<Complex>{3.0 - i}, {1, 1})
                .out<Complex>({1, 1})
                .run<Complex>(&reference::matmul),
            (std::vector<Complex>{(2.0 + i) * (3.0 - i)}));
}

TEST(ReferenceProduct, WithoutTermsIsZeroOrTheBias) {
  EXPECT_EQ(KernelCall()
                .in(Doubles{}, {2, 0})
                .in(Doubles{}, {0, 1})
                .out<double>({2, 1})
                .run<double>(&reference::matmul),
            (Doubles{0, 0}));
  EXPECT_EQ(KernelCall()
                .in(Doubles{}, {2, 0})
                .in(Doubles{}, {1, 0})
                .in(Doubles{3}, {1})
                .out<double>({2, 1})
                .run<double>(&reference::linear),
            (Doubles{3, 3}));
}

}  // namespace
}  // namespace faultline
