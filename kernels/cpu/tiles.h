#pragma once

#include <cstdint>

#include "kernels/cpu/spans.h"

// The inner loops of attention over tiles of f32, compiled once per instruction set like those of
// spans.h. A tile of scores or weights is [keys, queries]: what belongs to one query stands in one
// lane, so that maxima and sums over its keys need no step across lanes.
namespace faultline::cpu {

// Rows of b and c, and what is said to hold one number a query, have room for their length rounded
// up to this many; loops write there.
constexpr int64_t kTileMultiple = 16;  // lanes of the widest vector
inline int64_t padded(int64_t n) { return (n + kTileMultiple - 1) / kTileMultiple * kTileMultiple; }

// Indices [begin, end).
struct Range {
  int64_t begin;
  int64_t end;
  int64_t count() const { return end - begin; }
};

enum class Onto : uint8_t { zeros, sum, scaled_sum };

// c = start + a b with a start of 0, c, or c with row i multiplied by factors[i]. Each element adds
// its products in order, so that neither tiling nor an omitted term a = 0 changes a bit.
struct TileProduct {
  const float* a;  // element (i, k) at a[i * a_row + k * a_column]
  int64_t a_row, a_column;
  const float* b;  // rows without gaps
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t rows, columns, depth;
  Onto onto = Onto::sum;
  const float* factors = nullptr;
};

struct ScoreTile {
  float* scores;         // [keys, queries], rows `row` apart
  const float* allowed;  // alike; 0 where a query may not see a key. Null: it may see all
  int64_t row;
  int64_t keys, queries;
  const Range* seen;     // for each kTileMultiple queries, the keys to weigh; other weights are 0
  float scale, softcap;  // a score is scale q k, or softcap tanh(scale q k / softcap)
  const DropoutSpan* drop;  // of the tile's first weight; null: none
  uint32_t dropout_stride;  // from a query's weight to that of the next
};

// What the softmax over the keys seen so far is known by; one number a query.
struct OnlineSoftmax {
  float* largest;  // score; -infinity: no key seen
  float* total;    // of exp(score - largest)
  float* factors;  // out: what sums made with the former `largest` must be multiplied by
};

struct TileSpans {
  void (*multiply)(const TileProduct& product);
  // The same, leaving out the terms with allowed[i * row + k * column] == 0.
  void (*multiply_allowed)(const TileProduct& product, const float* allowed, int64_t row,
                           int64_t column);
  // to[i] = the product of q and row i of k, for i < n.
  void (*dots)(const float* q, const float* k, int64_t k_row, int64_t n, int64_t width, float* to);
  // From products q k to weights exp(score - largest), dropped ones 0.
  void (*weigh)(const ScoreTile& tile, const OnlineSoftmax& softmax);
  // From products q k in `scores` and dy v in `gradient` to weights as they multiply v, and to
  // d(q k); log_sum_exp is 0 where a query sees nothing, `mean` is dy y.
  void (*weigh_backward)(const ScoreTile& tile, float* gradient, const float* log_sum_exp,
                         const float* mean);
  // to[j * to_row + i] = from[i * from_row + j] for i < rows, j < columns.
  void (*transpose)(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                    int64_t columns);
  bool (*all_finite)(const float* x, int64_t n);
};

// The table of the active level. Throws as active_isa() does.
const TileSpans& tile_spans();

}  // namespace faultline::cpu
