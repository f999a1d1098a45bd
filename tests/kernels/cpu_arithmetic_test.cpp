#include <gtest/gtest.h>

#include <limits>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Binary {
  const char* name;
  Kernel kernel;
  float (*value)(float, float);
};

const std::vector<Binary>& binaries() {
  static const std::vector<Binary> kAll = {
      {"add", &cpu::add, [](float a, float b) { return a + b; }},
      {"sub", &cpu::sub, [](float a, float b) { return a - b; }},
      {"mul", &cpu::mul, [](float a, float b) { return a * b; }},
      {"div", &cpu::div, [](float a, float b) { return a / b; }},
      {"maximum", &cpu::maximum,
       [](float a, float b) { return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b); }},
      {"minimum", &cpu::minimum,
       [](float a, float b) { return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b); }},
  };
  return kAll;
}

// The value at row-major place i of `to` of a tensor that broadcasts to it.
float at(const Tensor& x, const Shape& to, int64_t i) {
  const Strides strides = broadcast_strides(x.shape(), x.strides(), to);
  int64_t offset = 0;
  for (int d = to.rank() - 1; d >= 0; --d) {
    offset += i % to[d] * strides[d];
    i /= to[d];
  }
  return reinterpret_cast<const float*>(x.view().data)[offset];
}

Tensor expected_of(const Binary& op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast(a.shape(), b.shape(), op.name);
  std::vector<float> values;
  for (int64_t i = 0; i < numel(shape); ++i) {
    values.push_back(op.value(at(a, shape, i), at(b, shape, i)));
  }
  return tensor(values, shape);
}

// One IEEE operation per element, so every comparison is exact.
TEST(CpuArithmetic, BroadcastsAsNumpyDoes) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{}, {}},
      {{7}, {7}},
      {{0}, {0}},
      {{1}, {0}},
      {{3, 5}, {5}},
      {{3, 5}, {3, 1}},
      {{3, 1}, {1, 5}},
      {{2, 1, 7}, {5, 1}},
      {{31, 67}, {}},
      {{}, {31, 67}},
      {{4, 3, 2}, {3, 1}},
      {{257, 768}, {768}},
      {{1500, 2}, {1, 2}},
      {{2, 3, 4, 5, 6}, {4, 1, 6}},
  };
  for (const Binary& op : binaries()) {
    for (const auto& [left, right] : shapes) {
      SCOPED_TRACE(std::string(op.name) + to_string(left) + to_string(right));
      const Tensor a = normal_tensor(left, 1);
      const Tensor b = normal_tensor(right, 2);
      const Tensor expected = expected_of(op, a, b);
      const Tensor y = CpuCall().in(a).in(b).out(unwritten(expected.shape())).run(op.kernel);
      EXPECT_TRUE(same_bits(y, expected));
    }
  }
}

TEST(CpuArithmetic, ReadsAndWritesAnyLayout) {
  const Tensor a = normal_tensor({40, 3, 60}, 3);
  const Tensor b = normal_tensor({40, 3, 60}, 4);
  for (const Binary& op : binaries()) {
    SCOPED_TRACE(op.name);
    const Tensor expected = expected_of(op, a, b);
    Tensor y = crossed(normal_tensor(a.shape(), 5), 0, 1);
    CpuCall().in(crossed(a, 0, 2)).in(crossed(b, 1, 2)).out(y).run(op.kernel);
    EXPECT_TRUE(same_bits(y, expected));
  }
}

TEST(CpuArithmetic, MaximumAndMinimumKeepNans) {
  const Tensor a = tensor({kNan, 1.0F, kNan, kInf, -kInf}, {5});
  const Tensor b = tensor({1.0F, kNan, kNan, 2.0F, 2.0F}, {5});
  for (const Binary& op : binaries()) {
    SCOPED_TRACE(op.name);
    const Tensor y = CpuCall().in(a).in(b).out(unwritten({5})).run(op.kernel);
    EXPECT_TRUE(close(y, expected_of(op, a, b), {.nan = Nan::must_match}));
  }
}

TEST(CpuArithmetic, ThreadsDoNotChangeABit) {
  const Tensor a = normal_tensor({97, 768}, 6);
  const Tensor b = normal_tensor({768}, 7);
  for (const Binary& op : binaries()) {
    SCOPED_TRACE(op.name);
    const Tensor expected = expected_of(op, a, b);
    for (const int threads : {1, 2, 4}) {
      EXPECT_TRUE(
          same_bits(CpuCall().in(a).in(b).out(unwritten(a.shape())).threads(threads).run(op.kernel),
                    expected));
    }
  }
}

TEST(CpuArithmetic, SixteenBitTypesRoundOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor a = in_dtype(normal_tensor({9, 131}, 8), dtype);
    const Tensor b = in_dtype(normal_tensor({131}, 9), dtype);
    for (const Binary& op : binaries()) {
      SCOPED_TRACE(op.name);
      const Tensor expected =
          in_dtype(expected_of(op, in_dtype(a, DType::f32), in_dtype(b, DType::f32)), dtype);
      EXPECT_TRUE(same_bits(CpuCall().in(a).in(b).out(unwritten(a.shape(), dtype)).run(op.kernel),
                            expected));
    }
  }
}

TEST(CpuArithmetic, AffineScalesAndShifts) {
  const Tensor x = normal_tensor({1031}, 10);
  const Tensor y =
      CpuCall().in(x).out(unwritten({1031})).with(AffineAttributes{3.25, -0.5}).run(&cpu::affine);
  std::vector<double> expected, allowed;
  for (const double v : x.to_vector<double>()) {
    expected.push_back(3.25 * v - 0.5);
    // The product and the sum round once each, or together.
    allowed.push_back(kEpsilon * (std::abs(3.25 * v) + std::abs(expected.back())));
  }
  EXPECT_TRUE(within(y.to_vector<double>(), expected, allowed));
}

TEST(CpuArithmetic, AffineWithoutOffsetKeepsTheSignOfZero) {
  const Tensor y = CpuCall()
                       .in(tensor({-0.0F, 0.0F}, {2}))
                       .out(unwritten({2}))
                       .with(AffineAttributes{2.0, 0.0})
                       .run(&cpu::affine);
  EXPECT_TRUE(same_bits(y, tensor({-0.0F, 0.0F}, {2})));
}

}  // namespace
}  // namespace faultline::test
