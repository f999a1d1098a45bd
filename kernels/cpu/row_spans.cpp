// Vector loops over one row: sums, softmax, normalisation, rotary positions.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/spans.h"
#include "kernels/cpu/targets.h"
#include "kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_spans.cpp"
#include "hwy/foreach_target.h"

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- sums ---------------------------------------------------------------------------------------

double sum(const float* x, int64_t n) {
  Total total;
  each(
      n, 0.0F, [&](V v) HWY_ATTR { total.add(v); }, x);
  return total.value();
}

double dot(const float* a, const float* b, int64_t n) {
  Total total;
  each(
      n, 0.0F, [&](V u, V v) HWY_ATTR { total.add_product(u, v); }, a, b);
  return total.value();
}

double sum_of_squares(const float* x, int64_t n, double center) {
  const auto c = hn::Set(Doubles(), center);
  auto low = hn::Zero(Doubles());
  auto high = hn::Zero(Doubles());
  const int64_t whole = n - n % lanes();
  for (int64_t i = 0; i < whole; i += lanes()) {
    const V v = hn::LoadU(D(), x + i);
    const auto a = hn::Sub(lower(v), c);
    const auto b = hn::Sub(upper(v), c);
    low = hn::MulAdd(a, a, low);
    high = hn::MulAdd(b, b, high);
  }
  double total = hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(low, high)));
  for (int64_t i = whole; i < n; ++i) {
    const double a = static_cast<double>(x[i]) - center;
    total += a * a;
  }
  return total;
}

// total[0, lanes) += x
HWY_INLINE void add_to(double* total, V x) {
  const Doubles dd;
  const auto half = static_cast<int64_t>(hn::Lanes(dd));
  hn::StoreU(hn::Add(hn::LoadU(dd, total), lower(x)), dd, total);
  hn::StoreU(hn::Add(hn::LoadU(dd, total + half), upper(x)), dd, total + half);
}

// Adds all rows of kVectors vectors with the totals in registers.
template <int kVectors>
HWY_INLINE void add_rows_of(const float* x, int64_t stride, int64_t rows, double* total) {
  const Doubles dd;
  const auto half = static_cast<int64_t>(hn::Lanes(dd));
  DoubleV sums[2 * kVectors];
  for (int v = 0; v < 2 * kVectors; ++v) sums[v] = hn::LoadU(dd, total + v * half);
  for (int64_t row = 0; row < rows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      const V values = hn::LoadU(D(), x + row * stride + v * lanes());
      sums[2 * v] = hn::Add(sums[2 * v], lower(values));
      sums[2 * v + 1] = hn::Add(sums[2 * v + 1], upper(values));
    }
  }
  for (int v = 0; v < 2 * kVectors; ++v) hn::StoreU(sums[v], dd, total + v * half);
}

void add_rows_to_totals(const float* x, int64_t stride, int64_t rows, double* total, int64_t n) {
  int64_t i = 0;
  for (; i + 4 * lanes() <= n; i += 4 * lanes()) add_rows_of<4>(x + i, stride, rows, total + i);
  for (; i + lanes() <= n; i += lanes()) add_rows_of<1>(x + i, stride, rows, total + i);
  if (i == n) return;
  for (int64_t row = 0; row < rows; ++row)
    add_to(total + i, load_first(x + row * stride + i, n - i));
}

// ---- softmax ------------------------------------------------------------------------------------

// Operand order matters: x86 returns the second one when either is a NaN.
HWY_INLINE V max_ignoring_nan(V x, V largest) { return hn::Max(x, largest); }

HWY_INLINE float largest_lane(V v) { return hn::GetLane(hn::MaxOfLanes(D(), v)); }

float max(const float* x, int64_t n) {
  V largest = all(-kInfinity);
  each(
      n, -kInfinity, [&](V v) HWY_ATTR { largest = max_ignoring_nan(v, largest); }, x);
  return largest_lane(largest);
}

float scale_and_max(const float* x, float* y, int64_t n, float scale) {
  const V a = all(scale);
  V largest = all(-kInfinity);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const V v = hn::Mul(hn::LoadU(D(), x + i), a);
    largest = max_ignoring_nan(v, largest);
    hn::StoreU(v, D(), y + i);
  }
  if (i < n) {
    const V v = hn::Mul(load_first(x + i, n - i), a);
    store_first(v, y + i, n - i);
    largest = max_ignoring_nan(load_first(y + i, n - i, -kInfinity), largest);
  }
  return largest_lane(largest);
}

void select(const float* allowed, const float* x, float* y, int64_t n, float scale, float other) {
  const V a = all(scale);
  const V b = all(other);
  map(
      n, y,
      [a, b](V mask, V v)
          HWY_ATTR { return hn::IfThenElse(hn::Ne(mask, hn::Zero(D())), hn::Mul(v, a), b); },
      allowed, x);
}

double exp_and_sum(const float* x, float* y, int64_t n, float shift) {
  const V s = all(shift);
  Total total;
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const V v = exp(hn::Sub(hn::LoadU(D(), x + i), s));
    total.add(v);
    hn::StoreU(v, D(), y + i);
  }
  if (i < n) {
    const V v = exp(hn::Sub(load_first(x + i, n - i), s));
    store_first(v, y + i, n - i);
    total.add(load_first(y + i, n - i));
  }
  return total.value();
}

double sum_of_exp(const float* x, int64_t n, float shift) {
  const V s = all(shift);
  Total total;
  // exp(-infinity) fills up with 0.
  each(
      n, -kInfinity, [&](V v) HWY_ATTR { total.add(exp(hn::Sub(v, s))); }, x);
  return total.value();
}

void subtract_both(const float* x, float* y, int64_t n, float a, float b) {
  const V u = all(a);
  const V w = all(b);
  map(
      n, y, [u, w](V v) HWY_ATTR { return hn::Sub(hn::Sub(v, u), w); }, x);
}

void softmax_backward(const float* dy, const float* y, float* dx, int64_t n, float dot_product) {
  const V c = all(dot_product);
  map(
      n, dx, [c](V g, V v) HWY_ATTR { return hn::Mul(v, hn::Sub(g, c)); }, dy, y);
}

void log_softmax_backward(const float* dy, const float* y, float* dx, int64_t n, float total) {
  const V c = all(total);
  map(
      n, dx, [c](V g, V v) HWY_ATTR { return hn::NegMulAdd(exp(v), c, g); }, dy, y);
}

void scaled_exp(const float* x, float* dx, int64_t n, float shift, float factor) {
  const V s = all(shift);
  const V f = all(factor);
  map(
      n, dx, [s, f](V v) HWY_ATTR { return hn::Mul(exp(hn::Sub(v, s)), f); }, x);
}

// ---- normalisation ------------------------------------------------------------------------------

void normalize(const float* x, const float* weight, const float* bias, float* y, int64_t n,
               float mean, float rstd) {
  const V m = all(mean);
  const V r = all(rstd);
  const auto plain = [m, r](V v) HWY_ATTR { return hn::Mul(hn::Sub(v, m), r); };
  if (weight != nullptr && bias != nullptr) {
    map(
        n, y, [&](V v, V w, V b) HWY_ATTR { return hn::MulAdd(plain(v), w, b); }, x, weight, bias);
  } else if (weight != nullptr) {
    map(
        n, y, [&](V v, V w) HWY_ATTR { return hn::Mul(plain(v), w); }, x, weight);
  } else if (bias != nullptr) {
    map(
        n, y, [&](V v, V b) HWY_ATTR { return hn::Add(plain(v), b); }, x, bias);
  } else {
    map(n, y, plain, x);
  }
}

void normalize_sums(const float* dy, const float* x, const float* weight, int64_t n, float mean,
                    float rstd, double sums[2]) {
  const V m = all(mean);
  const V r = all(rstd);
  Total of_g;
  Total of_gz;
  const auto step = [&](V g, V v) HWY_ATTR {
    of_g.add(g);
    of_gz.add_product(g, hn::Mul(hn::Sub(v, m), r));
  };
  if (weight != nullptr) {
    each(
        n, 0.0F, [&](V g, V v, V w) HWY_ATTR { step(hn::Mul(g, w), v); }, dy, x, weight);
  } else {
    each(n, 0.0F, step, dy, x);
  }
  sums[0] = of_g.value();
  sums[1] = of_gz.value();
}

void normalize_backward(const float* dy, const float* x, const float* weight, float* dx, int64_t n,
                        float mean, float rstd, float a, float b) {
  const V m = all(mean);
  const V r = all(rstd);
  const V first = all(a);
  const V second = all(b);
  const auto step = [&](V g, V v) HWY_ATTR {
    const V z = hn::Mul(hn::Sub(v, m), r);
    return hn::Mul(r, hn::NegMulAdd(z, second, hn::Sub(g, first)));
  };
  if (weight != nullptr) {
    map(
        n, dx, [&](V g, V v, V w) HWY_ATTR { return step(hn::Mul(g, w), v); }, dy, x, weight);
  } else {
    map(n, dx, step, dy, x);
  }
}

void normalize_totals(const float* dy, const float* x, double* dweight, double* dbias, int64_t n,
                      float mean, float rstd) {
  const V m = all(mean);
  const V r = all(rstd);
  each(
      n, 0.0F,
      [&](V g, V v) HWY_ATTR {
        add_to(dweight, hn::Mul(g, hn::Mul(hn::Sub(v, m), r)));
        add_to(dbias, g);
        dweight += lanes();
        dbias += lanes();
      },
      dy, x);
}

// ---- rotary positions ---------------------------------------------------------------------------

struct Pair {
  V a, b;
};

HWY_INLINE Pair turned(Pair x, V cosine, V sine) {
  return {hn::NegMulAdd(x.b, sine, hn::Mul(x.a, cosine)),
          hn::MulAdd(x.a, sine, hn::Mul(x.b, cosine))};
}

void turn_halves(const float* x, const float* cosines, const float* sines, float* y, int64_t n,
                 float sign) {
  const D d;
  const V s = all(sign);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const Pair pair = turned({hn::LoadU(d, x + i), hn::LoadU(d, x + n + i)},
                             hn::LoadU(d, cosines + i), hn::Mul(s, hn::LoadU(d, sines + i)));
    hn::StoreU(pair.a, d, y + i);
    hn::StoreU(pair.b, d, y + n + i);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  const Pair pair = turned({load_first(x + i, rest), load_first(x + n + i, rest)},
                           load_first(cosines + i, rest), hn::Mul(s, load_first(sines + i, rest)));
  store_first(pair.a, y + i, rest);
  store_first(pair.b, y + n + i, rest);
}

void turn_neighbours(const float* x, const float* cosines, const float* sines, float* y, int64_t n,
                     float sign) {
  const D d;
  const V s = all(sign);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    Pair pair;
    hn::LoadInterleaved2(d, x + 2 * i, pair.a, pair.b);
    pair = turned(pair, hn::LoadU(d, cosines + i), hn::Mul(s, hn::LoadU(d, sines + i)));
    hn::StoreInterleaved2(pair.a, pair.b, d, y + 2 * i);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  alignas(64) float buffer[2 * hn::MaxLanes(D())] = {};
  std::memcpy(buffer, x + 2 * i, static_cast<size_t>(2 * rest) * sizeof(float));
  Pair pair;
  hn::LoadInterleaved2(d, buffer, pair.a, pair.b);
  pair = turned(pair, load_first(cosines + i, rest), hn::Mul(s, load_first(sines + i, rest)));
  hn::StoreInterleaved2(pair.a, pair.b, d, buffer);
  std::memcpy(y + 2 * i, buffer, static_cast<size_t>(2 * rest) * sizeof(float));
}

const RowSpans& rows() {
  static constexpr RowSpans kTable = {
      .sum = sum,
      .dot = dot,
      .sum_of_squares = sum_of_squares,
      .add_rows_to_totals = add_rows_to_totals,
      .max = max,
      .scale_and_max = scale_and_max,
      .select = select,
      .exp_and_sum = exp_and_sum,
      .sum_of_exp = sum_of_exp,
      .subtract_both = subtract_both,
      .softmax_backward = softmax_backward,
      .log_softmax_backward = log_softmax_backward,
      .scaled_exp = scaled_exp,
      .normalize = normalize,
      .normalize_sums = normalize_sums,
      .normalize_backward = normalize_backward,
      .normalize_totals = normalize_totals,
      .turn_halves = turn_halves,
      .turn_neighbours = turn_neighbours,
  };
  return kTable;
}

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::cpu {
const RowSpans& row_spans() { FAULTLINE_FOR_ACTIVE_ISA(rows); }
}  // namespace faultline::cpu
#endif
