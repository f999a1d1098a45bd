// Vector loops over tiles: products, the online softmax and its derivative.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/targets.h"
#include "kernels/cpu/tiles.h"
#include "kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tile_spans.cpp"
#include "hwy/foreach_target.h"

#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

// ---- products -----------------------------------------------------------------------------------

// Rows and vectors of c that stay in registers: as many as hide the latency of the additions, and
// leave registers for a row of b and an element of a.
#if HWY_TARGET == HWY_AVX3
constexpr int kBlockRows = 8;
constexpr int kBlockVectors = 2;
#else
constexpr int kBlockRows = 6;
constexpr int kBlockVectors = 2;
#endif

HWY_INLINE V start_of(const TileProduct& p, int64_t i, int64_t j) {
  const V c = hn::LoadU(D(), p.c + i * p.c_row + j);
  return p.onto == Onto::sum ? c : hn::Mul(c, all(p.factors[i]));
}

// Elements [i, i + kRows) x [j, j + kVectors vectors) of c.
template <int kRows, int kVectors>
HWY_INLINE void multiply_block(const TileProduct& p, int64_t i, int64_t j) {
  const int64_t step = lanes();
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.onto == Onto::zeros ? hn::Zero(D()) : start_of(p, i + r, j + v * step);
    }
  }
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  const int64_t a_row = p.a_row;
  for (int64_t k = p.depth; k > 0; --k) {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(D(), b + v * step);
    for (int r = 0; r < kRows; ++r) {
      const V element = all(a[r * a_row]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(element, row[v], sums[r][v]);
    }
    a += p.a_column;
    b += p.b_row;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], D(), p.c + (i + r) * p.c_row + j + v * step);
    }
  }
}

template <int kRows, int kVectors>
HWY_INLINE void multiply_rest(const TileProduct& p, int64_t i, int64_t j) {
  if (p.rows - i == kRows) return multiply_block<kRows, kVectors>(p, i, j);
  if constexpr (kRows > 1) multiply_rest<kRows - 1, kVectors>(p, i, j);
}

template <int kVectors>
HWY_INLINE void multiply_columns(const TileProduct& p, int64_t j) {
  int64_t i = 0;
  for (; i + kBlockRows <= p.rows; i += kBlockRows) multiply_block<kBlockRows, kVectors>(p, i, j);
  multiply_rest<kBlockRows - 1, kVectors>(p, i, j);
}

void multiply(const TileProduct& p) {
  const int64_t block = kBlockVectors * lanes();
  int64_t j = 0;
  // One row alone has too few sums to keep the adders busy.
  for (; p.rows == 1 && j + 2 * block <= p.columns; j += 2 * block) {
    multiply_block<1, 2 * kBlockVectors>(p, 0, j);
  }
  for (; j + block <= p.columns + lanes() - 1; j += block) multiply_columns<kBlockVectors>(p, j);
  for (; j < p.columns; j += lanes()) multiply_columns<1>(p, j);
}

void multiply_allowed(const TileProduct& p, const float* allowed, int64_t row, int64_t column) {
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t j = 0; j < p.columns; j += lanes()) {
      V sum = p.onto == Onto::zeros ? hn::Zero(D()) : start_of(p, i, j);
      for (int64_t k = 0; k < p.depth; ++k) {
        if (allowed[i * row + k * column] == 0) continue;
        const V element = all(p.a[i * p.a_row + k * p.a_column]);
        sum = hn::MulAdd(element, hn::LoadU(D(), p.b + k * p.b_row + j), sum);
      }
      hn::StoreU(sum, D(), p.c + i * p.c_row + j);
    }
  }
}

void dots(const float* q, const float* k, int64_t k_row, int64_t n, int64_t width, float* to) {
  const int64_t whole = width - width % lanes();
  for (int64_t i = 0; i < n; ++i) {
    const float* const row = k + i * k_row;
    V sum = hn::Zero(D());
    for (int64_t d = 0; d < whole; d += lanes()) {
      sum = hn::MulAdd(hn::LoadU(D(), q + d), hn::LoadU(D(), row + d), sum);
    }
    if (whole < width) {
      const V rest = load_first(q + whole, width - whole);
      sum = hn::MulAdd(rest, load_first(row + whole, width - whole), sum);
    }
    to[i] = hn::GetLane(hn::SumOfLanes(D(), sum));
  }
}

// ---- softmax ------------------------------------------------------------------------------------

HWY_INLINE V score(const ScoreTile& tile, int64_t at) {
  V s = hn::Mul(hn::LoadU(D(), tile.scores + at), all(tile.scale));
  if (tile.softcap > 0) {
    s = hn::Mul(hn::Tanh(D(), hn::Div(s, all(tile.softcap))), all(tile.softcap));
  }
  if (tile.allowed == nullptr) return s;
  const V allowed = hn::LoadU(D(), tile.allowed + at);
  return hn::IfThenElse(hn::Ne(allowed, hn::Zero(D())), s,
                        all(-std::numeric_limits<float>::infinity()));
}

// What dropout multiplies the weights of key k by, for the queries from q on.
HWY_INLINE V dropout_factor(const ScoreTile& tile, int64_t k, int64_t q) {
  const Words words;
  const auto queries = hn::Iota(words, static_cast<uint32_t>(q));
  const auto index = hn::Add(hn::Mul(queries, hn::Set(words, tile.dropout_stride)),
                             hn::Set(words, tile.drop->first + static_cast<uint32_t>(k)));
  return hn::IfThenElseZero(is_kept(index, *tile.drop), all(tile.drop->scale));
}

// Zeros for the keys that none of the queries from q on is to weigh.
HWY_INLINE void clear_unseen(const ScoreTile& tile, int64_t q, float* to) {
  const Range seen = tile.seen[q / kTileMultiple];
  const V zero = hn::Zero(D());
  for (int64_t k = 0; k < seen.begin; ++k) hn::StoreU(zero, D(), to + k * tile.row + q);
  for (int64_t k = seen.end; k < tile.keys; ++k) hn::StoreU(zero, D(), to + k * tile.row + q);
}

void weigh(const ScoreTile& tile, const OnlineSoftmax& softmax) {
  const D d;
  const V none = all(-std::numeric_limits<float>::infinity());
  for (int64_t q = 0; q < tile.queries; q += lanes()) {
    const V before = hn::LoadU(d, softmax.largest + q);
    V largest = before;
    const Range seen = tile.seen[q / kTileMultiple];
    for (int64_t k = seen.begin; k < seen.end; ++k) {
      const V s = score(tile, k * tile.row + q);
      hn::StoreU(s, d, tile.scores + k * tile.row + q);
      // Operand order matters: x86 returns the second one when either is a NaN.
      largest = hn::Max(s, largest);
    }
    const V shift = hn::IfThenElse(hn::Eq(largest, none), hn::Zero(d), largest);
    V total = hn::Zero(d);
    for (int64_t k = seen.begin; k < seen.end; ++k) {
      float* const weight = tile.scores + k * tile.row + q;
      V p = exp(hn::Sub(hn::LoadU(d, weight), shift));
      total = hn::Add(total, p);
      if (tile.drop != nullptr) p = hn::Mul(p, dropout_factor(tile, k, q));
      hn::StoreU(p, d, weight);
    }
    clear_unseen(tile, q, tile.scores);
    const V factor = exp(hn::Sub(before, shift));
    hn::StoreU(largest, d, softmax.largest + q);
    hn::StoreU(factor, d, softmax.factors + q);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, softmax.total + q), factor, total), d, softmax.total + q);
  }
}

void weigh_backward(const ScoreTile& tile, float* gradient, const float* log_sum_exp,
                    const float* mean) {
  const D d;
  const V one = all(1.0F);
  const V hidden = all(-std::numeric_limits<float>::infinity());
  for (int64_t q = 0; q < tile.queries; q += lanes()) {
    const V lse = hn::LoadU(d, log_sum_exp + q);
    const V center = hn::LoadU(d, mean + q);
    const Range seen = tile.seen[q / kTileMultiple];
    for (int64_t k = seen.begin; k < seen.end; ++k) {
      const int64_t at = k * tile.row + q;
      const V s = score(tile, at);
      // Also where the query's own row is NaN, a hidden key gets nothing of it.
      const V p = hn::IfThenElseZero(hn::Ne(s, hidden), exp(hn::Sub(s, lse)));
      V dp = hn::LoadU(d, gradient + at);
      V slope = all(tile.scale);
      if (tile.softcap > 0) {
        const V ratio = hn::Div(s, all(tile.softcap));
        slope = hn::Mul(slope, hn::NegMulAdd(ratio, ratio, one));
      }
      V weight = p;
      if (tile.drop != nullptr) {
        const V factor = dropout_factor(tile, k, q);
        weight = hn::Mul(p, factor);
        dp = hn::Mul(dp, factor);
      }
      const V ds = hn::Mul(hn::Mul(p, hn::Sub(dp, center)), slope);
      hn::StoreU(weight, d, tile.scores + at);
      // Where a weight is 0, what its value holds stays unread.
      hn::StoreU(hn::IfThenElseZero(hn::Ne(p, hn::Zero(d)), ds), d, gradient + at);
    }
    clear_unseen(tile, q, tile.scores);
    clear_unseen(tile, q, gradient);
  }
}

// ---- movement -----------------------------------------------------------------------------------

// Four rows of four at a time.
HWY_INLINE void transpose_square(const float* from, int64_t from_row, float* to, int64_t to_row) {
  const hn::Full128<float> d;
  const auto a = hn::LoadU(d, from);
  const auto b = hn::LoadU(d, from + from_row);
  const auto c = hn::LoadU(d, from + 2 * from_row);
  const auto e = hn::LoadU(d, from + 3 * from_row);
  const auto low_ab = hn::InterleaveLower(d, a, b);
  const auto low_ce = hn::InterleaveLower(d, c, e);
  const auto high_ab = hn::InterleaveUpper(d, a, b);
  const auto high_ce = hn::InterleaveUpper(d, c, e);
  hn::StoreU(hn::ConcatLowerLower(d, low_ce, low_ab), d, to);
  hn::StoreU(hn::ConcatUpperUpper(d, low_ce, low_ab), d, to + to_row);
  hn::StoreU(hn::ConcatLowerLower(d, high_ce, high_ab), d, to + 2 * to_row);
  hn::StoreU(hn::ConcatUpperUpper(d, high_ce, high_ab), d, to + 3 * to_row);
}

void transpose(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
               int64_t columns) {
  const int64_t whole_rows = rows - rows % 4;
  const int64_t whole_columns = columns - columns % 4;
  for (int64_t j = 0; j < whole_columns; j += 4) {
    for (int64_t i = 0; i < whole_rows; i += 4) {
      transpose_square(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i) {
      to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

bool all_finite(const float* x, int64_t n) {
  const V largest = all(std::numeric_limits<float>::max());
  auto finite = hn::FirstN(D(), hn::Lanes(D()));
  each(
      n, 0.0F, [&](V v) HWY_ATTR { finite = hn::And(finite, hn::Le(hn::Abs(v), largest)); }, x);
  return hn::AllTrue(D(), finite);
}

const TileSpans& tiles() {
  static constexpr TileSpans kTable = {
      .multiply = multiply,
      .multiply_allowed = multiply_allowed,
      .dots = dots,
      .weigh = weigh,
      .weigh_backward = weigh_backward,
      .transpose = transpose,
      .all_finite = all_finite,
  };
  return kTable;
}

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::cpu {
const TileSpans& tile_spans() { FAULTLINE_FOR_ACTIVE_ISA(tiles); }
}  // namespace faultline::cpu
#endif
