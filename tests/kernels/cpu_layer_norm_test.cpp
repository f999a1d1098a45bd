#include <gtest/gtest.h>

#include <limits>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

constexpr double kEps = 1e-5;

struct Norm {
  Tensor y, mean, rstd;
};

Norm layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, int threads = 1) {
  const int64_t rows = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  const Norm result = {unwritten(x.shape(), x.dtype()), unwritten({rows}), unwritten({rows})};
  CpuCall()
      .in(x)
      .in(weight)
      .in(bias)
      .out(result.y)
      .out(result.mean)
      .out(result.rstd)
      .with(LayerNormAttributes{kEps})
      .threads(threads)
      .run(&cpu::layer_norm);
  return result;
}

struct Grads {
  Tensor dx, dweight, dbias;
};

Grads backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Norm& norm,
               int threads = 1) {
  const Shape columns = {x.size(-1)};
  const Grads result = {unwritten(x.shape(), x.dtype()), unwritten(columns), unwritten(columns)};
  CpuCall()
      .in(dy)
      .in(x)
      .in(weight)
      .in(norm.mean)
      .in(norm.rstd)
      .out(result.dx)
      .out(result.dweight)
      .out(result.dbias)
      .with(LayerNormAttributes{kEps})
      .threads(threads)
      .run(&cpu::layer_norm_backward);
  return result;
}

double or_one(const Tensor& weight, int64_t i) {
  return weight.defined() ? weight.data<float>()[i] : 1;
}
double or_zero(const Tensor& bias, int64_t i) { return bias.defined() ? bias.data<float>()[i] : 0; }

void expect_agreement(int64_t rows, int64_t n, const Tensor& weight, const Tensor& bias) {
  const Tensor x = normal_tensor({rows, n}, 1, 3);
  const Tensor dy = normal_tensor({rows, n}, 2);
  const Norm norm = layer_norm(x, weight, bias);
  const Grads grads = backward(dy, x, weight, norm);
  const auto v = x.to_vector<double>();
  const auto g = dy.to_vector<double>();
  std::vector<double> y, y_allowed, dx, dx_allowed, dw(n), db(n), dw_allowed(n), db_allowed(n);
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(row * n + i); };
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += v[at(i)] / static_cast<double>(n);
    double var = 0;
    for (int64_t i = 0; i < n; ++i) var += std::pow(v[at(i)] - mean, 2) / static_cast<double>(n);
    const double rstd = 1 / std::sqrt(var + kEps);
    double sum = 0, dot = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double z = (v[at(i)] - mean) * rstd;
      const double scaled = g[at(i)] * or_one(weight, i);
      sum += scaled / static_cast<double>(n);
      dot += scaled * z / static_cast<double>(n);
      size += std::abs(scaled) * (1 + std::abs(z)) / static_cast<double>(n);
    }
    // mean and rstd are rounded to f32, the difference and product round: z is off by at most this.
    const auto off = [&](int64_t i) {
      return kEpsilon * (rstd * (std::abs(mean) + std::abs(v[at(i)])) +
                         3 * std::abs((v[at(i)] - mean) * rstd));
    };
    for (int64_t i = 0; i < n; ++i) {
      const double z = (v[at(i)] - mean) * rstd;
      const double w = or_one(weight, i);
      y.push_back(z * w + or_zero(bias, i));
      y_allowed.push_back(std::abs(w) * off(i) +
                          2 * kEpsilon * (std::abs(z * w) + std::abs(or_zero(bias, i))));
      dx.push_back(rstd * (g[at(i)] * w - sum - z * dot));
      dx_allowed.push_back(rstd *
                           (off(i) * std::abs(dot) + 6 * kEpsilon * (1 + std::abs(z)) *
                                                         (std::abs(g[at(i)] * w) + 2 * size)));
      dw[static_cast<size_t>(i)] += g[at(i)] * z;
      db[static_cast<size_t>(i)] += g[at(i)];
      dw_allowed[static_cast<size_t>(i)] +=
          std::abs(g[at(i)]) * (off(i) + 2 * kEpsilon * std::abs(z));
      db_allowed[static_cast<size_t>(i)] += kEpsilon * std::abs(g[at(i)]);
    }
  }
  for (size_t i = 0; i < dw.size(); ++i) dw_allowed[i] += kEpsilon * std::abs(dw[i]);
  EXPECT_TRUE(within(norm.y.to_vector<double>(), y, y_allowed));
  EXPECT_TRUE(within(grads.dx.to_vector<double>(), dx, dx_allowed));
  EXPECT_TRUE(within(grads.dweight.to_vector<double>(), dw, dw_allowed));
  EXPECT_TRUE(within(grads.dbias.to_vector<double>(), db, db_allowed));
}

TEST(CpuLayerNorm, AgreesWithDouble) {
  for (const int64_t n : {2, 3, 17, 64, 131, 768}) {
    SCOPED_TRACE(n);
    const Tensor weight = normal_tensor({n}, 3);
    const Tensor bias = normal_tensor({n}, 4);
    for (const int64_t rows : {1, 5, 67}) {
      expect_agreement(rows, n, weight, bias);
      expect_agreement(rows, n, {}, {});
      expect_agreement(rows, n, weight, {});
      expect_agreement(rows, n, {}, bias);
    }
  }
}

TEST(CpuLayerNorm, KeepsItsPrecisionFarFromZero) {
  // 4096 + {-1, 1}: mean 4096, variance 1, all exact; one pass E[x^2] - E[x]^2 in f32 would lose
  // it.
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.push_back(i % 2 == 0 ? 4095.0F : 4097.0F);
  const Norm norm = layer_norm(tensor(values, {1, 64}), {}, {});
  EXPECT_EQ(norm.mean.item<float>(), 4096.0F);
  EXPECT_EQ(norm.rstd.item<float>(), static_cast<float>(1 / std::sqrt(1 + kEps)));
}

TEST(CpuLayerNorm, ANanSpoilsItsRowOnly) {
  auto values = normal_values(3 * 20, 5);
  values[25] = std::numeric_limits<float>::quiet_NaN();
  const auto y = layer_norm(tensor(values, {3, 20}), {}, {}).y.to_vector<float>();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 20 == 1) << i;
}

TEST(CpuLayerNorm, LayoutsAndThreadsDoNotChangeABit) {
  const Tensor x = normal_tensor({23, 60, 67}, 6);
  const Tensor dy = normal_tensor({23, 60, 67}, 7);
  const Tensor weight = normal_tensor({67}, 8);
  const Tensor bias = normal_tensor({67}, 9);
  const Norm expected = layer_norm(x, weight, bias);
  const Grads grads = backward(dy, x, weight, expected);
  for (const int threads : {1, 2, 4}) {
    const Norm norm = layer_norm(crossed(x, 0, 2), weight, bias, threads);
    EXPECT_TRUE(same_bits(norm.y, expected.y));
    EXPECT_TRUE(same_bits(norm.mean, expected.mean));
    EXPECT_TRUE(same_bits(norm.rstd, expected.rstd));
    const Grads again = backward(crossed(dy, 0, 1), x, weight, norm, threads);
    EXPECT_TRUE(same_bits(again.dx, grads.dx));
    EXPECT_TRUE(same_bits(again.dweight, grads.dweight));
    EXPECT_TRUE(same_bits(again.dbias, grads.dbias));
  }
}

TEST(CpuLayerNorm, SixteenBitTypesRoundOnce) {
  const Tensor weight = normal_tensor({130}, 10);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = in_dtype(normal_tensor({4, 130}, 11), dtype);
    const Tensor wide = in_dtype(x, DType::f32);
    const Norm norm = layer_norm(wide, weight, {});
    EXPECT_TRUE(same_bits(layer_norm(x, weight, {}).y, in_dtype(norm.y, dtype)));
    EXPECT_TRUE(same_bits(backward(x, x, weight, norm).dx,
                          in_dtype(backward(wide, wide, weight, norm).dx, dtype)));
  }
}

TEST(CpuLayerNorm, NoRowsGiveZeroParameterGradients) {
  const Tensor x = normal_tensor({0, 5}, 12);
  const Grads grads = backward(x, x, {}, layer_norm(x, {}, {}));
  EXPECT_EQ(grads.dweight.to_vector<float>(), std::vector<float>(5, 0.0F));
  EXPECT_EQ(grads.dbias.to_vector<float>(), std::vector<float>(5, 0.0F));
}

}  // namespace
}  // namespace faultline::test
