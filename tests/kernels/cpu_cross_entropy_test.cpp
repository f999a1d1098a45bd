#include <gmock/gmock.h>
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

struct Loss {
  Tensor loss, lse;
};

Loss cross_entropy(const Tensor& logits, const Tensor& labels, int64_t ignored = -1,
                   int threads = 1) {
  const Loss result = {unwritten({logits.size(0)}), unwritten({logits.size(0)})};
  CpuCall()
      .in(logits)
      .in(labels)
      .out(result.loss)
      .out(result.lse)
      .with(CrossEntropyAttributes{ignored})
      .threads(threads)
      .run(&cpu::cross_entropy);
  return result;
}

Tensor backward(const Tensor& logits, const Tensor& labels, const Tensor& lse, const Tensor& dloss,
                int threads = 1) {
  return CpuCall()
      .in(logits)
      .in(labels)
      .in(lse)
      .in(dloss)
      .out(unwritten(logits.shape(), logits.dtype()))
      .with(CrossEntropyAttributes{-1})
      .threads(threads)
      .run(&cpu::cross_entropy_backward);
}

Tensor some_labels(int64_t rows, int64_t classes) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < rows; ++i) labels.push_back(i % 5 == 2 ? -1 : i * 7919 % classes);
  return tensor(labels, {rows});
}

TEST(CpuCrossEntropy, AgreesWithDouble) {
  for (const int64_t classes : {1, 2, 17, 256, 1024, 1025, 3001}) {
    SCOPED_TRACE(classes);
    const int64_t rows = 9;
    const Tensor logits = normal_tensor({rows, classes}, 1, 4);
    const Tensor labels = some_labels(rows, classes);
    const auto x = logits.to_vector<double>();
    const auto label = labels.to_vector<int64_t>();
    const auto g = normal_tensor({rows}, 2);
    const auto dloss = g.to_vector<double>();
    std::vector<double> lse, loss, dx, allowed, dx_allowed;
    for (int64_t row = 0; row < rows; ++row) {
      const double* values = &x[static_cast<size_t>(row * classes)];
      const double largest = *std::max_element(values, values + classes);
      double total = 0;
      for (int64_t i = 0; i < classes; ++i) total += std::exp(values[i] - largest);
      lse.push_back(largest + std::log(total));
      const bool ignored = label[row] == -1;
      loss.push_back(ignored ? 0 : lse.back() - values[label[row]]);
      // x - max rounds by 2^-24 of up to 40, and so does each exponential (2 more ulp); the sum of
      // their logarithms' errors is at most that. Then one rounding to f32.
      allowed.push_back(43 * kEpsilon + kEpsilon * std::abs(lse.back()));
      for (int64_t i = 0; i < classes; ++i) {
        const double p = std::exp(values[i] - lse.back());
        dx.push_back(ignored ? 0 : (p - (i == label[row] ? 1 : 0)) * dloss[row]);
        // The rounded lse and x - lse move p by 2^-24 (|lse| + |x - lse| + 43) of itself.
        dx_allowed.push_back(kEpsilon * std::abs(dloss[row]) *
                             (p * (std::abs(lse.back()) + 90) + (i == label[row] ? 3 : 0)));
      }
    }
    const Loss actual = cross_entropy(logits, labels);
    EXPECT_TRUE(within(actual.lse.to_vector<double>(), lse, allowed));
    EXPECT_TRUE(within(actual.loss.to_vector<double>(), loss, allowed));
    EXPECT_TRUE(
        within(backward(logits, labels, actual.lse, g).to_vector<double>(), dx, dx_allowed));
  }
}

TEST(CpuCrossEntropy, HoldsForExtremeLogits) {
  // log(softmax) would be infinite here; the exact loss is 200.
  const Tensor logits = tensor({0.0F, 200.0F, -kInf, 1.0F, 3e38F, -3e38F}, {3, 2});
  const auto loss = cross_entropy(logits, tensor<int32_t>({0, 1, 0}, {3})).loss.to_vector<float>();
  EXPECT_EQ(loss[0], 200.0F);
  EXPECT_EQ(loss[1], 0.0F);
  EXPECT_EQ(loss[2], 0.0F);
}

TEST(CpuCrossEntropy, LeadingChunksOfMinusInfinityCountNothing) {
  std::vector<float> values(2100, -kInf);
  values[2050] = 3.0F;
  values[2051] = 3.0F;
  const Loss actual = cross_entropy(tensor(values, {1, 2100}), tensor<int64_t>({2051}, {1}));
  // ln 2 rounded once.
  EXPECT_FLOAT_EQ(actual.loss.item<float>(), 0.693147181F);
}

TEST(CpuCrossEntropy, ANanSpoilsItsRowOnly) {
  for (const int64_t place : {3, 1500, 2099}) {
    auto values = normal_values(3 * 2100, 3);
    values[static_cast<size_t>(2100 + place)] = kNan;
    const Loss actual = cross_entropy(tensor(values, {3, 2100}), tensor<int64_t>({1, 1, 1}, {3}));
    const auto loss = actual.loss.to_vector<float>();
    EXPECT_FALSE(std::isnan(loss[0]));
    EXPECT_TRUE(std::isnan(loss[1]));
    EXPECT_FALSE(std::isnan(loss[2]));
  }
}

TEST(CpuCrossEntropy, IgnoredRowsPassNothingOnEvenNans) {
  const Tensor logits = tensor({kNan, 1.0F, 2.0F, 3.0F}, {2, 2});
  const Tensor labels = tensor<int64_t>({-1, 0}, {2});
  const Loss actual = cross_entropy(logits, labels);
  EXPECT_EQ(actual.loss.to_vector<float>()[0], 0.0F);
  const auto dx =
      backward(logits, labels, actual.lse, tensor({kNan, 1.0F}, {2})).to_vector<float>();
  EXPECT_EQ(dx[0], 0.0F);
  EXPECT_EQ(dx[1], 0.0F);
}

TEST(CpuCrossEntropy, NamesTheRowAndTheLabelThatIsNoClass) {
  const Tensor logits = normal_tensor({3, 4}, 4);
  for (const int64_t wrong : {4, -2, -100}) {
    try {
      cross_entropy(logits, tensor<int64_t>({0, wrong, 9}, {3}));
      FAIL() << "accepted " << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("row 1"));
      EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(wrong)));
    }
  }
  EXPECT_NO_THROW(cross_entropy(logits, tensor<int64_t>({0, -100, 3}, {3}), -100));
}

TEST(CpuCrossEntropy, LayoutsThreadsAndLabelTypesDoNotChangeABit) {
  const Tensor logits = normal_tensor({41, 1777}, 5);
  const Tensor labels = some_labels(41, 1777);
  const auto wide = labels.to_vector<int64_t>();
  const Tensor narrow = tensor(std::vector<int32_t>(wide.begin(), wide.end()), {41});
  const Tensor dloss = normal_tensor({41}, 6);
  const Loss expected = cross_entropy(logits, labels);
  const Tensor dx = backward(logits, labels, expected.lse, dloss);
  for (const int threads : {1, 2, 4}) {
    const Loss actual = cross_entropy(crossed(logits, 0, 1), narrow, -1, threads);
    EXPECT_TRUE(same_bits(actual.loss, expected.loss));
    EXPECT_TRUE(same_bits(actual.lse, expected.lse));
    EXPECT_TRUE(same_bits(backward(crossed(logits, 0, 1), narrow, actual.lse, dloss, threads), dx));
  }
}

TEST(CpuCrossEntropy, ReadsSixteenBitLogits) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor logits = in_dtype(normal_tensor({5, 1100}, 7), dtype);
    const Tensor wide = in_dtype(logits, DType::f32);
    const Tensor labels = some_labels(5, 1100);
    const Loss expected = cross_entropy(wide, labels);
    EXPECT_TRUE(same_bits(cross_entropy(logits, labels).loss, expected.loss));
    const Tensor dloss = normal_tensor({5}, 8);
    EXPECT_TRUE(same_bits(backward(logits, labels, expected.lse, dloss),
                          in_dtype(backward(wide, labels, expected.lse, dloss), dtype)));
  }
}

}  // namespace
}  // namespace faultline::test
