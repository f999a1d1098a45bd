#include <gtest/gtest.h>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

Shape reduced_shape(const Shape& shape, uint32_t dims) {
  Shape result = shape;
  for (int d = 0; d < shape.rank(); ++d) {
    if ((dims >> d & 1U) != 0) result[d] = 1;
  }
  return result;
}

struct Sums {
  std::vector<double> totals, magnitudes;
};

// Sums in f64, with the sums of magnitudes for the bound.
Sums plain_sums(const Tensor& x, uint32_t dims) {
  const Shape to = reduced_shape(x.shape(), dims);
  const Strides strides = contiguous_strides(to);
  Sums sums;
  sums.totals.resize(static_cast<size_t>(numel(to)));
  sums.magnitudes.resize(sums.totals.size());
  const auto values = x.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    int64_t place = 0;
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (to[d] != 1) place += rest % x.size(d) * strides[d];
      rest /= x.size(d);
    }
    sums.totals[static_cast<size_t>(place)] += values[i];
    sums.magnitudes[static_cast<size_t>(place)] += std::abs(values[i]);
  }
  return sums;
}

Tensor reduce(Kernel kernel, const Tensor& x, uint32_t dims, int threads = 1,
              DType dtype = DType::f32) {
  return CpuCall()
      .in(x)
      .out(unwritten(reduced_shape(x.shape(), dims), dtype))
      .with(ReduceAttributes{dims})
      .threads(threads)
      .run(kernel);
}

// The sum is in f64 and rounds once to f32; both orders of the f64 sums differ by less than
// 2 n 2^-53 sum |x|.
void expect_sum(const Tensor& actual, const Tensor& x, uint32_t dims) {
  const Sums sums = plain_sums(x, dims);
  const double terms = static_cast<double>(x.numel()) / static_cast<double>(sums.totals.size());
  std::vector<double> allowed;
  for (size_t i = 0; i < sums.totals.size(); ++i) {
    allowed.push_back(kEpsilon * std::abs(sums.totals[i]) +
                      2 * terms * 0x1p-53 * sums.magnitudes[i]);
  }
  EXPECT_TRUE(within(actual.to_vector<double>(), sums.totals, allowed));
}

TEST(CpuReduce, SumsOverEverySetOfDimensions) {
  for (const Shape& shape :
       {Shape{3, 4, 5, 7}, Shape{2, 1, 37, 131}, Shape{1, 1, 1, 1}, Shape{11, 2, 3, 1}}) {
    const Tensor x = normal_tensor(shape, 1);
    for (uint32_t dims = 0; dims < 16; ++dims) {
      SCOPED_TRACE(to_string(shape) + " over " + std::to_string(dims));
      expect_sum(reduce(&cpu::sum, x, dims), x, dims);
      expect_sum(reduce(&cpu::sum, crossed(x, 1, 3), dims), x, dims);
      expect_sum(reduce(&cpu::sum, crossed(x, 0, 2), dims), x, dims);
    }
  }
}

TEST(CpuReduce, SumsLongRowsColumnsAndEverything) {
  const Tensor x = normal_tensor({301, 769}, 2);
  for (const uint32_t dims : {1U, 2U, 3U}) {
    for (const int threads : {1, 2, 4}) {
      const Tensor y = reduce(&cpu::sum, x, dims, threads);
      expect_sum(y, x, dims);
      EXPECT_TRUE(same_bits(y, reduce(&cpu::sum, x, dims)));
    }
  }
  const Tensor line = normal_tensor({100003}, 3);
  EXPECT_TRUE(same_bits(reduce(&cpu::sum, line, 1, 4), reduce(&cpu::sum, line, 1)));
  expect_sum(reduce(&cpu::sum, line, 1), line, 1);
}

TEST(CpuReduce, LosesNoSmallTermToALargeOne) {
  // 2^24 + 1 is no f32 number: a sum in f32 would stay at 2^24. Exact in f64.
  std::vector<float> values(4097, 1.0F);
  values[0] = 0x1p24F;
  const Tensor x = tensor(values, {4097});
  EXPECT_EQ(reduce(&cpu::sum, x, 1).item<float>(), 0x1p24F + 4096.0F);
}

TEST(CpuReduce, SumsOfNothingAreZeroAndMeansNan) {
  const Tensor x = normal_tensor({3, 0}, 4);
  EXPECT_EQ(reduce(&cpu::sum, x, 2).to_vector<float>(), std::vector<float>(3, 0.0F));
  for (const float y : reduce(&cpu::mean, x, 2).to_vector<float>()) EXPECT_TRUE(std::isnan(y));
  EXPECT_EQ(reduce(&cpu::sum, x, 1).numel(), 0);
}

TEST(CpuReduce, MeanDividesTheSum) {
  const Tensor x = normal_tensor({5, 61, 3}, 5);
  for (const uint32_t dims : {2U, 5U, 7U}) {
    const Sums sums = plain_sums(x, dims);
    const double n = static_cast<double>(x.numel()) / static_cast<double>(sums.totals.size());
    std::vector<double> expected, allowed;
    for (size_t i = 0; i < sums.totals.size(); ++i) {
      expected.push_back(sums.totals[i] / n);
      // One rounding to f32; the f64 part is 2^-28 of it.
      allowed.push_back(1.001 * kEpsilon * std::abs(expected[i]) +
                        2 * n * 0x1p-53 * sums.magnitudes[i]);
    }
    EXPECT_TRUE(within(reduce(&cpu::mean, x, dims).to_vector<double>(), expected, allowed));
  }
}

TEST(CpuReduce, NansAndInfinitiesReachTheirSumOnly) {
  std::vector<float> values(12, 1.0F);
  values[1] = std::numeric_limits<float>::quiet_NaN();
  values[5] = std::numeric_limits<float>::infinity();
  const auto y = reduce(&cpu::sum, tensor(values, {3, 4}), 2).to_vector<float>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(y[2], 4.0F);
}

TEST(CpuReduce, SixteenBitInputsSumWithoutRoundingBetween) {
  // 1,024 times 2^-10: a bf16 sum would stop at 0.25 (precision 8 bits). Exact here.
  const Tensor x = in_dtype(tensor(std::vector<float>(1024, 0x1p-10F), {1024}), DType::bf16);
  EXPECT_EQ(reduce(&cpu::sum, x, 1, 1, DType::bf16).item<float>(), 1.0F);
}

}  // namespace
}  // namespace faultline::test
