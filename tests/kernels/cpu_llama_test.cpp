// rms_norm, rope and swiglu: what the samples of every op do not ask.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

struct Norm {
  Tensor y, rstd;
};

Norm rms_norm(const Tensor& x, const Tensor& weight, int threads = 1) {
  const Norm result = {unwritten(x.shape(), x.dtype()), unwritten({x.numel() / x.size(-1)})};
  CpuCall()
      .in(x)
      .in(weight)
      .out(result.y)
      .out(result.rstd)
      .with(RmsNormAttributes{1e-6})
      .threads(threads)
      .run(&cpu::rms_norm);
  return result;
}

struct Gradients {
  Tensor dx, dweight;
};

Gradients rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                            const Norm& norm, int threads = 1) {
  const Gradients result = {unwritten(x.shape(), x.dtype()), unwritten({x.size(-1)})};
  CpuCall()
      .in(dy)
      .in(x)
      .in(weight)
      .in(norm.rstd)
      .out(result.dx)
      .out(result.dweight)
      .with(RmsNormAttributes{1e-6})
      .threads(threads)
      .run(&cpu::rms_norm_backward);
  return result;
}

TEST(CpuRmsNorm, LayoutsAndThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({23, 60, 67}, 1);
  const Tensor dy = normal_tensor({23, 60, 67}, 2);
  const Tensor weight = normal_tensor({67}, 3);
  const Norm expected = rms_norm(x, weight);
  const Gradients gradients = rms_norm_backward(dy, x, weight, expected);
  for (const int threads : {1, 2, 4}) {
    const Norm norm = rms_norm(crossed(x, 0, 2), weight, threads);
    EXPECT_TRUE(same_bits(norm.y, expected.y));
    EXPECT_TRUE(same_bits(norm.rstd, expected.rstd));
    const Gradients again = rms_norm_backward(crossed(dy, 0, 1), x, weight, norm, threads);
    EXPECT_TRUE(same_bits(again.dx, gradients.dx));
    EXPECT_TRUE(same_bits(again.dweight, gradients.dweight));
  }
}

TEST(CpuRmsNorm, SixteenBitTypesRoundOnce) {
  const Tensor weight = normal_tensor({130}, 4);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = in_dtype(normal_tensor({4, 130}, 5), dtype);
    const Tensor wide = in_dtype(x, DType::f32);
    EXPECT_TRUE(same_bits(rms_norm(x, weight).y, in_dtype(rms_norm(wide, weight).y, dtype)));
  }
}

// Squares of 3e38 overflow f32; the sum of squares is in f64.
TEST(CpuRmsNorm, LargeNumbersDoNotOverflow) {
  const Norm norm = rms_norm(tensor(std::vector<float>{3e38F, -3e38F, 3e38F, 3e38F}, {1, 4}), {});
  EXPECT_TRUE(close(norm.y.to_vector<double>(), {1, -1, 1, 1}, {.absolute = 4 * kEpsilon}));
}

TEST(CpuRmsNorm, ANanSpoilsItsRowOnly) {
  auto values = normal_values(3 * 20, 6);
  values[25] = std::numeric_limits<float>::quiet_NaN();
  const auto y = rms_norm(tensor(values, {3, 20}), {}).y.to_vector<float>();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 20 == 1) << i;
}

Tensor rope(const Tensor& x, const Tensor& cosines, const Tensor& sines,
            const RopeAttributes& attributes, int threads = 1) {
  return CpuCall()
      .in(x)
      .in(cosines)
      .in(sines)
      .out(unwritten(x.shape(), x.dtype()))
      .with(attributes)
      .threads(threads)
      .run(&cpu::rope);
}

constexpr RopeAttributes kHalves{RopeLayout::half_split};
constexpr RopeAttributes kNeighbours{RopeLayout::interleaved};

TEST(CpuRope, LayoutsAndThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({3, 7, 67, 46}, 7);
  const Tensor cosines = normal_tensor({3, 67, 23}, 8);
  const Tensor sines = normal_tensor({3, 67, 23}, 9);
  for (const RopeAttributes& attributes : {kHalves, kNeighbours}) {
    const Tensor expected = rope(x, cosines, sines, attributes);
    for (const int threads : {1, 2, 4}) {
      const Tensor crossed_tables =
          rope(x, crossed(cosines, 0, 1), crossed(sines, 1, 2), attributes, threads);
      EXPECT_TRUE(same_bits(crossed_tables, expected));
      // As a model gives it: heads cut out of [B, T, H, D]; and one whose elements lie apart.
      EXPECT_TRUE(same_bits(rope(crossed(x, 1, 2), cosines, sines, attributes, threads), expected));
      EXPECT_TRUE(same_bits(rope(crossed(x, 2, 3), cosines, sines, attributes, threads), expected));
    }
  }
}

// Element i and i + D / 2 of the one are elements 2 i and 2 i + 1 of the other. To the bit: both
// turn a pair by the same operations.
TEST(CpuRope, TheTwoLayoutsDifferByAPermutationOnly) {
  for (const int64_t pairs : {1, 4, 5, 16, 23, 64}) {
    SCOPED_TRACE(pairs);
    const Tensor x = normal_tensor({2, 3, 5, 2 * pairs}, 10);
    const Tensor cosines = normal_tensor({1, 5, pairs}, 11);
    const Tensor sines = normal_tensor({1, 5, pairs}, 12);
    const auto interleaved = [&](const Tensor& halves) {
      const auto from = halves.to_vector<float>();
      std::vector<float> to(from.size());
      for (size_t i = 0; i < from.size(); ++i) {
        const auto n = static_cast<size_t>(pairs);
        const size_t element = i % (2 * n);
        to[i - element + (element < n ? 2 * element : 2 * (element - n) + 1)] = from[i];
      }
      return tensor(to, halves.shape());
    };
    EXPECT_TRUE(same_bits(rope(interleaved(x), cosines, sines, kNeighbours),
                          interleaved(rope(x, cosines, sines, kHalves))));
  }
}

TEST(CpuRope, SixteenBitTypesRoundOnce) {
  const Tensor cosines = normal_tensor({1, 3, 11}, 13);
  const Tensor sines = normal_tensor({1, 3, 11}, 14);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const RopeAttributes& attributes : {kHalves, kNeighbours}) {
      const Tensor x = in_dtype(normal_tensor({2, 2, 3, 22}, 15), dtype);
      const Tensor wide = in_dtype(x, DType::f32);
      EXPECT_TRUE(same_bits(rope(x, cosines, sines, attributes),
                            in_dtype(rope(wide, cosines, sines, attributes), dtype)));
    }
  }
}

Tensor swiglu(const Tensor& gate, const Tensor& up, int threads = 1) {
  return CpuCall().in(gate).in(up).out(unwritten(gate.shape())).threads(threads).run(&cpu::swiglu);
}

TEST(CpuSwiglu, LayoutsAndThreadsDoNotChangeABit) {
  const Shape shape{31, 47, 67};
  const Tensor dy = normal_tensor(shape, 16);
  const Tensor gate = normal_tensor(shape, 17, 3);
  const Tensor up = normal_tensor(shape, 18);
  const auto backward = [&](const Tensor& seen_dy, const Tensor& seen_gate, int threads) {
    const Tensor dgate = unwritten(shape);
    const Tensor dup = unwritten(shape);
    CpuCall().in(seen_dy).in(seen_gate).in(up).out(dgate).out(dup).threads(threads).run(
        &cpu::swiglu_backward);
    return std::pair(dgate, dup);
  };
  const Tensor y = swiglu(gate, up);
  const auto [dgate, dup] = backward(dy, gate, 1);
  for (const int threads : {1, 2, 4}) {
    EXPECT_TRUE(same_bits(swiglu(crossed(gate, 0, 2), crossed(up, 1, 2), threads), y));
    const auto [dgate_again, dup_again] = backward(crossed(dy, 0, 1), crossed(gate, 0, 2), threads);
    EXPECT_TRUE(same_bits(dgate_again, dgate));
    EXPECT_TRUE(same_bits(dup_again, dup));
  }
}

// Far from 0 the gate is open or shut; exp(1000) must not make a NaN of it.
TEST(CpuSwiglu, LargeGatesAreOpenOrShut) {
  const std::vector<float> gates{-1e30F, -1000, 1000, 1e30F};
  const std::vector<float> y =
      swiglu(tensor(gates, {4}), tensor(std::vector<float>(4, 2), {4})).to_vector<float>();
  EXPECT_EQ(y, (std::vector<float>{0, 0, 2000, 2e30F}));
}

}  // namespace
}  // namespace faultline::test
