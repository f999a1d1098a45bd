// Attention by tiles with an online softmax (Dao, "FlashAttention-2", 2023; Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018). A tile of scores is held transposed, one
// query a lane.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The memory of one thread: some tiles, whatever the sequence's length.
class Workspace {
 public:
  explicit Workspace(const Attention& attention)
      : sight(attention.visibility),
        memory_((kTileKeys + 2 * kTileQueries) * padded(attention.head_size) +
                (kTileKeys + 3) * kTileQueries) {
    const int64_t width = padded(attention.head_size);
    float* next = memory_.get();
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    row_room = take(kTileKeys * width);
    y = take(kTileQueries * width);
    transposed_q = take(width * kTileQueries);
    weights = take(kTileKeys * kTileQueries);
    softmax.largest = take(kTileQueries);
    softmax.total = take(kTileQueries);
    softmax.factors = take(kTileQueries);
  }

  TileSight sight;
  float* row_room;        // [keys, width]
  float* y;               // [queries, width]
  float* transposed_q;    // [D, queries]
  float* weights;         // [keys, queries]
  OnlineSoftmax softmax;  // [queries] each

 private:
  TileMemory memory_;
};

struct Forward {
  Attention attention;
  HeadRows y;
  TensorView lse;

  void run_block(int64_t b, int64_t h, Range queries, Workspace& work) const {
    const int64_t width = padded(attention.head_size);
    const Rows q = attention.q.elements(b, h, queries, work.y);
    tile_spans().transpose(q.data, q.row, work.transposed_q, kTileQueries, queries.count(),
                           attention.head_size);
    const OnlineSoftmax& softmax = work.softmax;
    std::fill_n(work.y, kTileQueries * width, 0.0F);
    std::fill_n(softmax.largest, kTileQueries, -kInfinity);
    std::fill_n(softmax.total, kTileQueries, 0.0F);
    for (int64_t block = 0; block < blocks_in(attention.key_count, kTileKeys); ++block) {
      const Range keys = block_of(block, kTileKeys, attention.key_count);
      if (!attention.may_see(queries, keys)) continue;
      if (work.sight.look(b, queries, keys)) add_tile(b, h, queries, keys, work);
    }
    finish(b, h, queries, work);
  }

  void add_tile(int64_t b, int64_t h, Range queries, Range keys, Workspace& work) const {
    const int64_t g = attention.key_head(h);
    const Rows k = attention.k.elements(b, g, keys, work.row_room);
    work.sight.multiply_scores({.a = k.data,
                                .a_row = k.row,
                                .a_column = 1,
                                .b = work.transposed_q,
                                .b_row = kTileQueries,
                                .c = work.weights,
                                .c_row = kTileQueries,
                                .rows = keys.count(),
                                .columns = queries.count(),
                                .depth = attention.head_size,
                                .onto = Onto::zeros});
    const DropoutSpan drop = attention.drop(b, h, queries, keys);
    const OnlineSoftmax& softmax = work.softmax;
    tile_spans().weigh({.scores = work.weights,
                        .allowed = work.sight.allowed(),
                        .row = kTileQueries,
                        .keys = keys.count(),
                        .queries = queries.count(),
                        .seen = work.sight.seen(),
                        .scale = static_cast<float>(attention.attributes.mask.scale),
                        .softcap = static_cast<float>(attention.attributes.softcap),
                        .drop = attention.drops() ? &drop : nullptr,
                        .dropout_stride = static_cast<uint32_t>(attention.key_count)},
                       softmax);
    const Rows v = attention.v.vectors(b, g, keys, work.row_room);
    work.sight.multiply_onto_queries({.a = work.weights,
                                      .a_row = 1,
                                      .a_column = kTileQueries,
                                      .b = v.data,
                                      .b_row = v.row,
                                      .c = work.y,
                                      .c_row = padded(attention.head_size),
                                      .rows = queries.count(),
                                      .columns = attention.head_size,
                                      .depth = keys.count(),
                                      .onto = Onto::scaled_sum,
                                      .factors = softmax.factors});
  }

  // Divides by the totals and writes. A total of 0: no key was seen.
  void finish(int64_t b, int64_t h, Range queries, Workspace& work) const {
    const int64_t width = padded(attention.head_size);
    const OnlineSoftmax& softmax = work.softmax;
    float* const sums = softmax.factors;
    for (int64_t q = 0; q < queries.count(); ++q) {
      const float total = softmax.total[q];
      float* const row = work.y + q * width;
      arithmetic_spans().scale(row, row, attention.head_size, total == 0 ? 0.0F : 1 / total);
      sums[q] = total == 0 ? -kInfinity : softmax.largest[q] + std::log(total);
    }
    y.write(b, h, queries, {work.y, width});
    float* const to = lse.as<float>() + b * lse.strides[0] + h * lse.strides[1];
    for (int64_t q = 0; q < queries.count(); ++q) {
      to[(queries.begin + q) * lse.strides[2]] = sums[q];
    }
  }
};

}  // namespace

void flash_attention(const KernelArgs& args) {
  const Forward forward{Attention(args, "flash_attention"), HeadRows(args.outputs[0]),
                        args.outputs[1]};
  const Attention& attention = forward.attention;
  if (attention.query_count < kQueriesWorthATile) {
    return attend_by_rows(attention, forward.y, forward.lse, args.threads);
  }
  const int64_t blocks = blocks_in(attention.query_count, kTileQueries);
  const int64_t heads = attention.batches * attention.query_heads;
  for_tasks(
      heads * blocks,
      threads_for(heads * attention.query_count * attention.key_count, args.threads),
      [&] { return Workspace(attention); },
      [&](int64_t task, Workspace& work) {
        const int64_t head = task / blocks;
        const int64_t block = in_pairs(task % blocks, blocks);
        forward.run_block(head / attention.query_heads, head % attention.query_heads,
                          block_of(block, kTileQueries, attention.query_count), work);
      });
}

}  // namespace faultline::cpu
