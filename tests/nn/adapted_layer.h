#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "autograd/functional.h"
#include "nn/lora.h"

// A linear layer with an adapter, and what it must give, in plain f64.
namespace faultline::nn::test {

constexpr double kUnit = 0x1p-24;  // half an ulp of f32

using Values = std::vector<double>;

// Plain f64: [n, k] times the transpose of [m, k].
inline Values product(const Values& a, const Values& b, int64_t k) {
  const auto inner = static_cast<size_t>(k);
  const size_t n = a.size() / inner;
  const size_t m = b.size() / inner;
  Values c(n * m);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) {
      for (size_t l = 0; l < inner; ++l) c[i * m + j] += a[i * inner + l] * b[j * inner + l];
    }
  }
  return c;
}

inline Values transposed(const Values& a, int64_t columns) {
  const auto width = static_cast<size_t>(columns);
  const size_t rows = a.size() / width;
  Values t(a.size());
  for (size_t i = 0; i < a.size(); ++i) t[i % width * rows + i / width] = a[i];
  return t;
}

inline Values times(double scale, Values a) {
  for (double& value : a) value *= scale;
  return a;
}

inline Values plus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline Values magnitudes(Values a) {
  for (double& value : a) value = std::abs(value);
  return a;
}

// One layer with an adapter, all of it random.
struct Adapted {
  static constexpr int64_t kIn = 24, kOut = 20, kRows = 6, kRank = 5;
  Linear layer{kIn, kOut, Bias::no};
  DropoutKey key{1};
  Tensor x = normal({kRows, kIn}, 0, 1, 3, 1);

  explicit Adapted(const LoraConfig& config = {.rank = kRank, .alpha = 3}) {
    const NoGrad off;
    copy_(layer.weight().value(), normal({kOut, kIn}, 0, 0.3, 3, 2));
    add_lora(layer, "own", config, key, 1);
    copy_(b().value(), normal(b().value().shape(), 0, 0.3, 3, 3));
  }
  LoraAdapter& adapter() { return *layer.adapters().front(); }
  Parameter& a() { return *adapter().parameters()[0]; }
  Parameter& b() { return *adapter().parameters()[1]; }

  // x W^T and s (x A^T) B^T in f64, of values or of their magnitudes.
  using View = Values (*)(Values);
  Values base(View of) { return product(of(x.to_vector<double>()), of(weight()), kIn); }
  Values delta(View of) {
    const Values h = product(of(x.to_vector<double>()), of(a().value().to_vector<double>()), kIn);
    return times(adapter().scale(), product(h, of(b().value().to_vector<double>()), kRank));
  }
  Values weight() { return layer.weight().value().to_vector<double>(); }
};

inline Values as_they_are(Values a) { return a; }

// A sum of n terms in f32, each rounded, is within n u of the sum of their magnitudes; chained
// products add their counts. Two more for what is scaled and added.
constexpr double kTerms = Adapted::kIn + Adapted::kRank + 4;

}  // namespace faultline::nn::test
