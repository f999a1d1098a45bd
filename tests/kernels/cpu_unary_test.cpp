#include <gtest/gtest.h>

#include <limits>

#include "kernels/elementwise.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

struct Unary {
  const char* name;
  Kernel forward;
  Kernel backward;
  double (*value)(double);
  double (*slope)(double, double);
};

const std::vector<Unary>& unaries() {
  static const std::vector<Unary> kAll = {
#define FAULTLINE_UNARY(name, autocast)                                     \
  {#name, &cpu::name, &cpu::name##_backward, &functor::name::value<double>, \
   &functor::name::slope<double>},
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
  };
  return kAll;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> spread_of_points() {
  std::vector<float> points = {0.0F,   0x1p-130F, -0x1p-130F, 1.0F,  -1.0F,  3.5F,
                               -3.5F,  40.0F,     -40.0F,     86.0F, -86.0F, 95.0F,
                               -95.0F, 30001.0F,  -1e6F,      3e30F};
  for (const double scale : {0.01, 1.0, 4.0}) {
    const auto some = normal_values(331, 1, scale);
    points.insert(points.end(), some.begin(), some.end());
  }
  return points;
}

Tensor forward(const Unary& op, const Tensor& x) {
  return CpuCall().in(x).out(unwritten(x.shape(), x.dtype())).run(op.forward);
}

Tensor backward(const Unary& op, const Tensor& dy, const Tensor& x, const Tensor& y) {
  return CpuCall().in(dy).in(x).in(y).out(unwritten(x.shape(), x.dtype())).run(op.backward);
}

// An f32 formula of a handful of operations: each rounds once, and the functions inside are within
// 2 ulp. An error in an argument of exp grows with it (40 * 2^-24 at 40), where the result itself
// is tiny; absolutely it stays below 4 ulp of 1.
constexpr Tolerance kFormula = {
    .absolute = 8 * kEpsilon, .relative = 16 * kEpsilon, .nan = Nan::must_match};

// The formula in f64 can be finite or nonzero where f32 is not: both round to f32 first.
double as_f32(double x) { return static_cast<double>(static_cast<float>(x)); }

TEST(CpuUnary, AgreesWithTheFormulaInDouble) {
  const auto points = spread_of_points();
  const auto n = static_cast<int64_t>(points.size());
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    std::vector<double> expected;
    for (const float x : points) expected.push_back(as_f32(op.value(x)));
    const auto actual = forward(op, tensor(points, {n})).to_vector<double>();
    EXPECT_TRUE(close(actual, expected, kFormula));
  }
}

TEST(CpuUnary, BackwardMultipliesTheSlope) {
  const auto points = spread_of_points();
  const auto n = static_cast<int64_t>(points.size());
  const auto dy = normal_values(n, 2);
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    const Tensor x = tensor(points, {n});
    const Tensor y = forward(op, x);
    const auto kept = y.to_vector<double>();
    std::vector<double> expected;
    for (size_t i = 0; i < points.size(); ++i) {
      expected.push_back(as_f32(dy[i] * as_f32(op.slope(points[i], kept[i]))));
    }
    EXPECT_TRUE(close(backward(op, tensor(dy, {n}), x, y).to_vector<double>(), expected, kFormula));
  }
}

TEST(CpuUnary, InfinitiesAndNansGoAsInTheFormula) {
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    const std::vector<float> points = {kInf, -kInf, kNan, -0.0F};
    const Tensor x = tensor(points, {4});
    const Tensor y = forward(op, x);
    std::vector<double> values, slopes;
    for (const float p : points) {
      values.push_back(op.value(p));
      slopes.push_back(op.slope(p, op.value(p)));
    }
    const Tolerance exact = {.nan = Nan::must_match};
    EXPECT_TRUE(close(y.to_vector<double>(), values, exact));
    EXPECT_TRUE(std::isnan(y.to_vector<float>()[2]));
    const Tensor ones = tensor(std::vector<float>(4, 1.0F), {4});
    EXPECT_TRUE(close(backward(op, ones, x, y).to_vector<double>(), slopes, exact));
  }
}

TEST(CpuUnary, GivesAnElementTheSameBitsAtAnyPlace) {
  const auto points = spread_of_points();
  const Tensor x = tensor(points, {static_cast<int64_t>(points.size())});
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    const Tensor whole = forward(op, x);
    const Tensor slopes = backward(op, x, x, whole);
    for (const int64_t begin : {0, 1, 7, 15}) {
      for (const int64_t n : {0, 1, 2, 3, 5, 8, 13, 17, 31, 67}) {
        const Tensor part = x.alias({n}, {1}, begin);
        const Tensor y = forward(op, part);
        EXPECT_TRUE(same_bits(y, whole.alias({n}, {1}, begin), Nan::must_match));
        EXPECT_TRUE(
            same_bits(backward(op, part, part, y), slopes.alias({n}, {1}, begin), Nan::must_match));
      }
    }
  }
}

TEST(CpuUnary, SixteenBitTypesComputeInF32AndRoundOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = in_dtype(normal_tensor({1237}, 3), dtype);
    const Tensor wide = in_dtype(x, DType::f32);
    for (const Unary& op : unaries()) {
      SCOPED_TRACE(op.name);
      EXPECT_TRUE(same_bits(forward(op, x), in_dtype(forward(op, wide), dtype), Nan::must_match));
    }
  }
}

TEST(CpuUnary, AnyLayoutGivesTheSameBits) {
  const Tensor x = normal_tensor({37, 5, 53}, 4);
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    const Tensor expected = forward(op, x);
    for (const auto& [a, b] : {std::pair{0, 2}, {0, 1}, {1, 2}}) {
      const Tensor crossed_x = crossed(x, a, b);
      EXPECT_TRUE(same_bits(forward(op, crossed_x), expected, Nan::must_match));
      Tensor y = crossed(normal_tensor(x.shape(), 5), b, a);
      CpuCall().in(x).out(y).run(op.forward);
      EXPECT_TRUE(same_bits(y, expected, Nan::must_match));
    }
  }
}

TEST(CpuUnary, ThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({70001}, 6);
  for (const Unary& op : unaries()) {
    SCOPED_TRACE(op.name);
    const Tensor one = forward(op, x);
    for (const int threads : {2, 4}) {
      const Tensor several =
          CpuCall().in(x).out(unwritten({70001})).threads(threads).run(op.forward);
      EXPECT_TRUE(same_bits(several, one, Nan::must_match));
    }
  }
}

}  // namespace
}  // namespace faultline::test
