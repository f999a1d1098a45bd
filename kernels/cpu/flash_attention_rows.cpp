// Attention of few queries, as when text is generated token by token: a tile would be almost empty,
// so each query has a row of scores over all its keys.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_tiles.h"

namespace faultline::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The memory of one thread.
class Workspace {
 public:
  explicit Workspace(const Attention& attention)
      : memory_(2 * padded(attention.key_count) + (kTileKeys + 2) * padded(attention.head_size)) {
    const int64_t width = padded(attention.head_size);
    float* next = memory_.get();
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    weights = take(padded(attention.key_count));
    allowed = take(padded(attention.key_count));
    row_room = take(kTileKeys * width);
    q = take(width);
    y = take(width);
  }

  float *weights, *allowed;  // [keys]
  float* row_room;           // [kTileKeys, width]
  float *q, *y;              // [width]

 private:
  TileMemory memory_;
};

// Calls body(range) for the blocks of the first n keys in which the query may see any.
template <class Body>
void each_block(const Attention& attention, Range query, int64_t n, const Body& body) {
  for (int64_t begin = 0; begin < n; begin += kTileKeys) {
    const Range keys{begin, std::min(n, begin + kTileKeys)};
    if (attention.may_see(query, keys)) body(keys);
  }
}

// From products q k to scores; -infinity where the query may not see a key.
void finish_scores(const FlashAttentionAttributes& attributes, const Workspace& work, int64_t n) {
  const ArithmeticSpans& spans = arithmetic_spans();
  float* const s = work.weights;
  spans.scale(s, s, n, static_cast<float>(attributes.mask.scale));
  if (attributes.softcap > 0) {
    spans.scale(s, s, n, static_cast<float>(1 / attributes.softcap));
    unary_spans().tanh(s, s, n);
    spans.scale(s, s, n, static_cast<float>(attributes.softcap));
  }
  row_spans().select(work.allowed, s, s, n, 1, -kInfinity);
}

// y of one query into the workspace; returns its log-sum-exp.
float attend(const Attention& attention, int64_t b, int64_t h, Range query, Workspace& work) {
  const int64_t g = attention.key_head(h);
  const int64_t D = attention.head_size;
  const int64_t n = attention.visibility.reach(query.begin);
  const int64_t visible = attention.visibility.allow(b, query.begin, work.allowed);
  std::fill_n(work.y, padded(D), 0.0F);
  if (visible == 0) return -kInfinity;
  const Rows q = attention.q.elements(b, h, query, work.q);
  each_block(attention, query, n, [&](Range keys) {
    const Rows k = attention.k.elements(b, g, keys, work.row_room);
    tile_spans().dots(q.data, k.data, k.row, keys.count(), D, work.weights + keys.begin);
  });
  finish_scores(attention.attributes, work, n);
  const float largest = row_spans().max(work.weights, n);
  const float shift = largest == -kInfinity ? 0.0F : largest;
  const double total = row_spans().exp_and_sum(work.weights, work.weights, n, shift);
  if (attention.drops()) {
    const DropoutSpan span = attention.drop(b, h, query, {0, n});
    arithmetic_spans().dropout(work.weights, work.weights, n, span);
  }
  each_block(attention, query, n, [&](Range keys) {
    const Rows v = attention.v.vectors(b, g, keys, work.row_room);
    const TileProduct product{.a = work.weights + keys.begin,
                              .a_row = 0,
                              .a_column = 1,
                              .b = v.data,
                              .b_row = v.row,
                              .c = work.y,
                              .c_row = 0,
                              .rows = 1,
                              .columns = D,
                              .depth = keys.count()};
    if (visible == n) return tile_spans().multiply(product);
    tile_spans().multiply_allowed(product, work.allowed + keys.begin, 0, 1);
  });
  const auto factor = static_cast<float>(total == 0 ? 0 : 1 / total);
  arithmetic_spans().scale(work.y, work.y, D, factor);
  return total == 0 ? -kInfinity : static_cast<float>(shift + std::log(total));
}

}  // namespace

void attend_by_rows(const Attention& attention, const HeadRows& y, const TensorView& lse,
                    int threads) {
  const int64_t queries = attention.query_count;
  const int64_t rows = attention.batches * attention.query_heads * queries;
  for_tasks(
      rows, threads_for(rows * attention.key_count, threads), [&] { return Workspace(attention); },
      [&](int64_t task, Workspace& work) {
        const int64_t b = task / queries / attention.query_heads;
        const int64_t h = task / queries % attention.query_heads;
        const Range query{task % queries, task % queries + 1};
        const float sum = attend(attention, b, h, query, work);
        y.write(b, h, query, {work.y, padded(attention.head_size)});
        lse.as<float>()[b * lse.strides[0] + h * lse.strides[1] + query.begin * lse.strides[2]] =
            sum;
      });
}

}  // namespace faultline::cpu
