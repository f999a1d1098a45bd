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

Tensor map(Kernel kernel, const Tensor& x, int threads = 1) {
  return CpuCall().in(x).out(unwritten(x.shape(), x.dtype())).threads(threads).run(kernel);
}
Tensor map(Kernel kernel, const Tensor& dy, const Tensor& y, int threads = 1) {
  return CpuCall().in(dy).in(y).out(unwritten(y.shape(), y.dtype())).threads(threads).run(kernel);
}

double log_sum_exp(const double* x, int64_t n) {
  double largest = -kInf;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - largest);
  return largest + std::log(total);
}

// log_softmax in f64, row by row.
std::vector<double> plain_log_softmax(const Tensor& x) {
  auto values = x.to_vector<double>();
  const int64_t n = x.size(-1);
  for (size_t row = 0; row + static_cast<size_t>(n) <= values.size(); row += n) {
    const double total = log_sum_exp(&values[row], n);
    for (int64_t i = 0; i < n; ++i) values[row + i] -= total;
  }
  return values;
}

// x - max rounds by up to 2^-24 of |x - max|, which exp turns into a relative error; then exp, the
// factor and the product: 5 roundings' worth.
constexpr double kWidest = 90;  // |x - max| below this, here
constexpr Tolerance kProbability = {.absolute = 0x1p-126, .relative = (kWidest + 5) * kEpsilon};

TEST(CpuSoftmax, AgreesWithDoubleForEveryWidth) {
  for (const int64_t n : {1, 2, 3, 17, 64, 131, 1024, 5003}) {
    SCOPED_TRACE(n);
    const Tensor x = normal_tensor({5, n}, 1, 5);
    const auto logs = plain_log_softmax(x);
    std::vector<double> expected;
    for (const double y : logs) expected.push_back(std::exp(y));
    EXPECT_TRUE(close(map(&cpu::softmax, x).to_vector<double>(), expected, kProbability));
    // Two subtractions of numbers up to kWidest.
    EXPECT_TRUE(close(map(&cpu::log_softmax, x).to_vector<double>(), logs,
                      {.absolute = 4 * kEpsilon, .relative = 4 * kEpsilon}));
  }
}

TEST(CpuSoftmax, DoesNotOverflow) {
  const Tensor x = tensor({89.0F, 0.0F, 3e38F, -3e38F}, {2, 2});
  const auto y = map(&cpu::softmax, x).to_vector<float>();
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_GT(y[1], 0.0F);
  EXPECT_EQ(y[2], 1.0F);
  EXPECT_EQ(y[3], 0.0F);
}

TEST(CpuSoftmax, ANanSpoilsItsRowOnly) {
  std::vector<float> values = normal_values(3 * 37, 2);
  values[40] = kNan;
  for (const Kernel kernel : {&cpu::softmax, &cpu::log_softmax}) {
    const auto y = map(kernel, tensor(values, {3, 37})).to_vector<float>();
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 37 == 1) << i;
  }
}

TEST(CpuSoftmax, BackwardAgreesWithDouble) {
  const Tensor x = normal_tensor({7, 333}, 3, 2);
  const Tensor dy = normal_tensor({7, 333}, 4);
  const Tensor y = map(&cpu::softmax, x);
  const Tensor logs = map(&cpu::log_softmax, x);
  const auto g = dy.to_vector<double>();
  const auto p = y.to_vector<double>();
  const auto l = logs.to_vector<double>();
  std::vector<double> expected, log_expected, allowed, log_allowed;
  for (size_t row = 0; row < g.size(); row += 333) {
    double dot = 0;
    double total = 0;
    for (size_t i = row; i < row + 333; ++i) {
      dot += g[i] * p[i];
      total += g[i];
    }
    for (size_t i = row; i < row + 333; ++i) {
      expected.push_back(p[i] * (g[i] - dot));
      // Difference, product and the rounded dot.
      allowed.push_back(3 * kEpsilon * p[i] * (std::abs(g[i]) + std::abs(dot)));
      log_expected.push_back(g[i] - std::exp(l[i]) * total);
      // exp (2), total and product round relatively, the difference once more.
      log_allowed.push_back(5 * kEpsilon * (std::abs(g[i]) + std::exp(l[i]) * std::abs(total)));
    }
  }
  EXPECT_TRUE(within(map(&cpu::softmax_backward, dy, y).to_vector<double>(), expected, allowed));
  EXPECT_TRUE(within(map(&cpu::log_softmax_backward, dy, logs).to_vector<double>(), log_expected,
                     log_allowed));
}

TEST(CpuSoftmax, LayoutsAndThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({97, 11, 67}, 5);
  for (const Kernel kernel : {&cpu::softmax, &cpu::log_softmax}) {
    const Tensor expected = map(kernel, x);
    for (const int threads : {2, 4}) EXPECT_TRUE(same_bits(map(kernel, x, threads), expected));
    EXPECT_TRUE(same_bits(map(kernel, crossed(x, 0, 2)), expected));
    EXPECT_TRUE(same_bits(map(kernel, crossed(x, 0, 1)), expected));
  }
  for (const Kernel kernel : {&cpu::softmax_backward, &cpu::log_softmax_backward}) {
    const Tensor expected = map(kernel, x, x);
    EXPECT_TRUE(same_bits(map(kernel, x, x, 4), expected));
    EXPECT_TRUE(same_bits(map(kernel, crossed(x, 0, 1), x), expected));
  }
}

TEST(CpuSoftmax, SixteenBitTypesRoundOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = in_dtype(normal_tensor({6, 1301}, 6), dtype);
    EXPECT_TRUE(same_bits(map(&cpu::softmax, x),
                          in_dtype(map(&cpu::softmax, in_dtype(x, DType::f32)), dtype)));
  }
}

TEST(CpuSoftmax, EmptyRowsAndNoRowsAreFine) {
  EXPECT_EQ(map(&cpu::softmax, normal_tensor({0, 5}, 7)).numel(), 0);
  EXPECT_EQ(map(&cpu::softmax, normal_tensor({5, 0}, 7)).numel(), 0);
}

// ---- masked -------------------------------------------------------------------------------------

struct Mask {
  MaskAttributes attributes;
  Tensor valid;
  Tensor documents;

  bool sees(int64_t b, int64_t q, int64_t k, int64_t keys) const {
    const int64_t position = attributes.query_offset + q;
    const bool past = !attributes.causal || k <= position;
    const bool near = attributes.window == 0 || std::abs(k - position) < attributes.window;
    if (k >= attributes.prefix && !(past && (near || k < attributes.sinks))) return false;
    if (valid.defined() && !valid.data<bool>()[b * keys + k]) return false;
    if (!documents.defined()) return true;
    const auto document = documents.data<int32_t>();
    return document[b * keys + k] == document[b * keys + position];
  }
};

Tensor masked(const Tensor& scores, const Mask& mask, int threads = 1) {
  return CpuCall()
      .in(scores)
      .in(mask.valid)
      .in(mask.documents)
      .out(unwritten(scores.shape(), scores.dtype()))
      .with(mask.attributes)
      .threads(threads)
      .run(&cpu::masked_softmax);
}

std::vector<double> plain_masked(const Tensor& scores, const Mask& mask) {
  auto values = scores.to_vector<double>();
  const int64_t heads = scores.size(1);
  const int64_t queries = scores.size(2);
  const int64_t keys = scores.size(3);
  for (int64_t row = 0; row < scores.numel() / keys; ++row) {
    const int64_t b = row / (heads * queries);
    double* x = &values[static_cast<size_t>(row * keys)];
    std::vector<double> seen;
    for (int64_t k = 0; k < keys; ++k) {
      if (mask.sees(b, row % queries, k, keys)) seen.push_back(mask.attributes.scale * x[k]);
    }
    const double total = log_sum_exp(seen.data(), static_cast<int64_t>(seen.size()));
    for (int64_t k = 0; k < keys; ++k) {
      x[k] =
          mask.sees(b, row % queries, k, keys) ? std::exp(mask.attributes.scale * x[k] - total) : 0;
    }
  }
  return values;
}

std::vector<Mask> masks(int64_t batch, int64_t keys) {
  Tensor valid = empty({batch, keys}, DType::boolean);
  Tensor documents = empty({batch, keys}, DType::i32);
  for (int64_t i = 0; i < batch * keys; ++i) {
    valid.mutable_data<bool>()[i] = i % 7 != 0 && i / keys != 1;  // nothing valid in batch 1
    documents.mutable_data<int32_t>()[i] = static_cast<int32_t>(i % keys / 9);
  }
  const MaskAttributes causal = {.causal = true, .query_offset = 0, .scale = 0.125};
  const MaskAttributes all = {.causal = false, .query_offset = 0, .scale = -0.7};
  const MaskAttributes late = {.causal = true, .query_offset = 5, .scale = 1};
  const MaskAttributes window = {.query_offset = 5, .scale = 0.5, .window = 9, .sinks = 3};
  const MaskAttributes wide = {.causal = false, .window = 20, .prefix = 2};
  return {{window, {}, {}},     {wide, {}, {}},          {window, valid, documents},
          {causal, {}, {}},     {all, {}, {}},           {late, {}, {}},
          {causal, valid, {}},  {all, valid, {}},        {causal, {}, documents},
          {all, {}, documents}, {late, valid, documents}};
}

TEST(CpuMaskedSoftmax, AgreesWithDoubleUnderEveryMask) {
  const int64_t keys = 43;
  const auto all = masks(3, keys);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const Tensor scores = normal_tensor({3, 2, 38, keys}, 8, 4);
    const auto expected = plain_masked(scores, all[i]);
    // Scaling rounds once more than a plain softmax does.
    EXPECT_TRUE(close(masked(scores, all[i]).to_vector<double>(), expected,
                      {.absolute = 0x1p-126, .relative = (2 * kWidest + 5) * kEpsilon}));
    EXPECT_TRUE(same_bits(masked(crossed(scores, 1, 2), all[i], 4), masked(scores, all[i])));
  }
}

TEST(CpuMaskedSoftmax, ForbiddenScoresNeverLeak) {
  const int64_t keys = 43;
  for (const Mask& mask : masks(3, keys)) {
    const Tensor scores = normal_tensor({3, 2, 38, keys}, 9);
    const Tensor expected = masked(scores, mask);
    for (const float poison : {kNan, kInf, -kInf, 3e38F}) {
      auto values = scores.to_vector<float>();
      for (int64_t i = 0; i < scores.numel(); ++i) {
        const int64_t row = i / keys;
        if (!mask.sees(row / 76, row % 38, i % keys, keys)) values[static_cast<size_t>(i)] = poison;
      }
      EXPECT_TRUE(same_bits(masked(tensor(values, scores.shape()), mask), expected));
    }
  }
}

TEST(CpuMaskedSoftmax, AVisibleNanLeavesForbiddenWeightsZero) {
  const Mask mask = {{.causal = true}, {}, {}};
  auto values = normal_values(16, 10);
  values[5] = kNan;  // query 1, key 1
  const auto y = masked(tensor(values, {1, 1, 4, 4}), mask).to_vector<float>();
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], 0.0F);
  EXPECT_EQ(y[7], 0.0F);
  EXPECT_FALSE(std::isnan(y[8]));
}

TEST(CpuMaskedSoftmax, QueriesBeforeAllKeysGetZeros) {
  const Mask mask = {{.causal = true, .query_offset = -2}, {}, {}};
  const auto y = masked(normal_tensor({1, 1, 3, 4}, 11), mask).to_vector<float>();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(y[i], 0.0F);
  EXPECT_EQ(y[8], 1.0F);
}

TEST(CpuMaskedSoftmax, DocumentsNeedQueriesInsideTheKeys) {
  const Mask mask = {
      {.causal = true, .query_offset = 1}, {}, tensor(std::vector<int32_t>(4, 0), {1, 4})};
  EXPECT_THROW(masked(normal_tensor({1, 1, 4, 4}, 12), mask), InvalidArgument);
}

}  // namespace
}  // namespace faultline::test
