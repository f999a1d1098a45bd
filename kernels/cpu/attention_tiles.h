#pragma once

#include <memory>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/visibility.h"

// What flash_attention and its backward share. Shapes: B batch, H query heads, G key heads, Q
// queries, K keys, D head size. A tile is a block of queries against a block of keys.
namespace faultline::cpu {

constexpr int64_t kTileQueries = 64;
constexpr int64_t kTileKeys = 64;

// Zeros to begin with, from the start of a cache line on.
class TileMemory {
 public:
  explicit TileMemory(int64_t count)
      : lines_(std::make_unique<Line[]>(static_cast<size_t>(padded(count) / kTileMultiple))) {}
  float* get() const { return lines_[0].values; }

 private:
  struct alignas(kTileMultiple * sizeof(float)) Line {
    float values[kTileMultiple];
  };
  std::unique_ptr<Line[]> lines_;
};

// Rows of f32, `row` apart.
struct Rows {
  const float* data;
  int64_t row;
};

// A view [B, H, T, D] of any layout and dtype as rows of f32.
class HeadRows {
 public:
  explicit HeadRows(const TensorView& view) : view_(view), width_(view.shape[3]) {}

  // Rows of head h in sequence b: the tensor's own memory where that serves, else copied to `room`,
  // which holds padded(D) floats a row. The first kind is for reading element by element; only the
  // second may be the right side of a product.
  Rows elements(int64_t b, int64_t h, Range rows, float* room) const;
  Rows vectors(int64_t b, int64_t h, Range rows, float* room) const;
  // To the tensor's rows.
  void write(int64_t b, int64_t h, Range rows, Rows from) const;
  // The tensor's own rows, if sums can be collected in them; else null.
  float* sums(int64_t b, int64_t h) const;

 private:
  std::byte* address(int64_t b, int64_t h, int64_t t) const;
  bool is_f32() const { return view_.dtype == DType::f32 && view_.strides[3] == 1; }
  bool is_f32_without_gaps() const {
    return is_f32() && view_.strides[2] == width_ && width_ % kTileMultiple == 0;
  }
  Rows copied(int64_t b, int64_t h, Range rows, float* room) const;

  const TensorView& view_;
  int64_t width_;
};

// The inputs that both directions begin with: q, k, v, key_valid, documents, dropout key. The
// launch must outlive it.
struct Attention {
  Attention(const KernelArgs& args, const char* op);

  int64_t batches, query_heads, key_heads, query_count, key_count, head_size;
  FlashAttentionAttributes attributes;
  HeadRows q, k, v;
  Visibility visibility;
  DropoutSpan first_drop = {};  // of the first weight of all

  int64_t key_head(int64_t h) const { return h / (query_heads / key_heads); }
  bool drops() const { return attributes.dropout.p > 0; }
  // False where the rule of the mask lets none of these queries see any of these keys.
  bool may_see(Range queries, Range keys) const;
  // Of the first weight of a tile.
  DropoutSpan drop(int64_t b, int64_t h, Range queries, Range keys) const;
};

// Who sees whom in one tile, and the products that need to know: they leave out what nobody sees,
// and where a query may not see a key, nothing that the key holds reaches it, be it a NaN.
class TileSight {
 public:
  explicit TileSight(const Visibility& visibility)
      : visibility_(visibility), allowed_(kTileKeys * kTileQueries) {}

  // Looks at another tile. False: no query sees a key.
  bool look(int64_t b, Range queries, Range keys);

  // 1 where a query sees a key, else 0, as [keys, queries] in rows of kTileQueries. Null: each sees
  // all.
  const float* allowed() const { return sees_all_ ? nullptr : allowed_.get(); }

  // For each kTileMultiple queries, the keys that the rule of the mask lets any of them see, as one
  // range, which may hold others too.
  const Range* seen() const { return seen_; }

  // c [keys, queries] = a b; where a query does not see a key, anything.
  void multiply_scores(const TileProduct& product) const;
  // c [queries, D] += a [queries, keys] b [keys, D], a being 0 where a query does not see a key.
  void multiply_onto_queries(const TileProduct& product) const;
  // c [keys, D] += a [keys, queries] b [queries, D], likewise.
  void multiply_onto_keys(const TileProduct& product) const;

 private:
  bool fill_rule(Range queries, Range keys);
  void fill_allowed(int64_t b, Range queries, Range keys);
  Range queries_that_see(Range keys) const;

  const Visibility& visibility_;
  bool sees_all_ = false;
  int64_t query_count_ = 0;
  int64_t key_count_ = 0;
  // Counted in the tile, by the rule of the mask alone.
  Range seen_by_[kTileKeys] = {};  // the queries that see each key
  Range seen_[kTileQueries / kTileMultiple] = {};
  TileMemory allowed_;
};

// Block `number` of `size` out of `count`.
inline Range block_of(int64_t number, int64_t size, int64_t count) {
  return {number * size, std::min(count, (number + 1) * size)};
}
inline int64_t blocks_in(int64_t count, int64_t size) { return (count + size - 1) / size; }
// The order 0, n - 1, 1, n - 2, ... of n blocks: under a causal mask the work of neighbours adds up
// to the same, so that contiguous parts are alike.
inline int64_t in_pairs(int64_t i, int64_t n) { return i % 2 == 0 ? i / 2 : n - 1 - i / 2; }

// Runs body(task, workspace) for tasks [0, count) in contiguous parts, each with a workspace.
template <class Make, class Body>
void for_tasks(int64_t count, int threads, const Make& make, const Body& body) {
  const int64_t parts = std::min<int64_t>(count, threads);
  parallel_for(parts, threads, [&](int64_t part) {
    auto workspace = make();
    for (int64_t task = count * part / parts; task < count * (part + 1) / parts; ++task) {
      body(task, workspace);
    }
  });
}

// The forward pass row by row, which is faster for fewer queries than this.
constexpr int64_t kQueriesWorthATile = 4;
void attend_by_rows(const Attention& attention, const HeadRows& y, const TensorView& lse,
                    int threads);

}  // namespace faultline::cpu
