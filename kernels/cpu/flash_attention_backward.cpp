// The derivative of attention by tiles (Dao, "FlashAttention-2", 2023): weights come back as
// exp(score - log-sum-exp), tile by tile. With dropout factors Z, dP = Z (dy v) and m = dy y:
// dS = P (dP - m), dv = (Z P)^T dy, dk = dS^T q, dq = dS k.
#include <limits>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// Which gradients a pass makes.
enum class Pass : uint8_t { queries, keys, both };

// The memory of one thread: some tiles, and dk and dv of one head where they cannot be summed in
// place.
class Workspace {
 public:
  Workspace(const Attention& attention, int64_t sum_rows)
      : sight(attention.visibility), width_(padded(attention.D)), sum_rows_(sum_rows) {
    const int64_t rows = 2 * kTileKeys + 5 * kTileQueries + 2 * sum_rows;
    memory_.reset(
        new float[static_cast<size_t>(rows * width_ + 2 * (kTileKeys + 1) * kTileQueries)]());
    float* next = memory_.get();
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    k = take(kTileKeys * width_);
    v = take(kTileKeys * width_);
    q = take(kTileQueries * width_);
    dy = take(kTileQueries * width_);
    dq = take(kTileQueries * width_);
    transposed_q = take(width_ * kTileQueries);
    transposed_dy = take(width_ * kTileQueries);
    weights = take(kTileKeys * kTileQueries);
    gradient = take(kTileKeys * kTileQueries);
    log_sum_exp = take(kTileQueries);
    mean = take(kTileQueries);
    dk_sums = take(sum_rows * width_);
    dv_sums = take(sum_rows * width_);
  }

  float *k, *v;                         // [keys, width]
  float *q, *dy, *dq;                   // [queries, width]
  float *transposed_q, *transposed_dy;  // [D, queries]
  float *weights, *gradient;            // [keys, queries]
  float *log_sum_exp, *mean;            // [queries]
  float *dk_sums, *dv_sums;             // [sum_rows, width]
  TileSight sight;

 private:
  int64_t width_;
  int64_t sum_rows_;
  std::unique_ptr<float[]> memory_;
};

// Where the gradient of a block of keys is summed: rows `row` apart, the first being key `first`.
struct Sums {
  float* dk;
  float* dv;
  int64_t row;
  int64_t first;
};

struct Backward {
  explicit Backward(const KernelArgs& args)
      : attention(args, "flash_attention_backward"),
        dy(args.inputs[6]),
        y(args.inputs[7]),
        lse(args.inputs[8]),
        dq(args.outputs[0]),
        dk(args.outputs[1]),
        dv(args.outputs[2]) {}

  Attention attention;
  HeadRows dy, y;
  const TensorView& lse;
  HeadRows dq, dk, dv;

  int64_t width() const { return padded(attention.D); }

  // The gradients of keys [keys.begin, keys.end) of key head g, and with `both` those of all
  // queries of its group.
  void run_keys(int64_t b, int64_t g, Range keys, Pass pass, Workspace& work) const {
    const Sums sums = begin_sums(b, g, keys, work);
    const int64_t group = attention.H / attention.G;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t block = 0; block < blocks_in(attention.Q, kTileQueries); ++block) {
        const Range queries = block_of(block, kTileQueries, attention.Q);
        if (pass == Pass::both || attention.may_see(queries, keys)) {
          run_block(b, h, queries, keys, pass, sums, work);
        }
      }
    }
    end_sums(b, g, keys, sums, work);
  }

  void run_block(int64_t b, int64_t h, Range queries, Range keys, Pass pass, const Sums& sums,
                 Workspace& work) const {
    const Rows q = attention.q.vectors(b, h, queries, work.q);
    const Rows dy_rows = dy.vectors(b, h, queries, work.dy);
    prepare(b, h, queries, q, dy_rows, work);
    for (int64_t begin = keys.begin; begin < keys.end; begin += kTileKeys) {
      const Range tile{begin, std::min(keys.end, begin + kTileKeys)};
      if (!attention.may_see(queries, tile) || !work.sight.look(b, queries, tile)) continue;
      const Rows k = attention.k.vectors(b, attention.key_head(h), tile, work.k);
      weigh(b, h, queries, tile, k, work);
      if (pass != Pass::queries) add_to_keys(queries, tile, q, dy_rows, sums, work);
      if (pass != Pass::keys) add_to_queries(queries, tile, k, work);
    }
    if (pass != Pass::keys) dq.write(b, h, queries, {work.dq, width()});
  }

 private:
  Sums begin_sums(int64_t b, int64_t g, Range keys, Workspace& work) const {
    Sums sums{dk.sums(b, g), dv.sums(b, g), width(), 0};
    if (sums.dk == nullptr || sums.dv == nullptr) {
      sums = {work.dk_sums, work.dv_sums, width(), keys.begin};
    }
    const int64_t offset = (keys.begin - sums.first) * sums.row;
    std::fill_n(sums.dk + offset, keys.count() * sums.row, 0.0F);
    std::fill_n(sums.dv + offset, keys.count() * sums.row, 0.0F);
    return sums;
  }

  void end_sums(int64_t b, int64_t g, Range keys, const Sums& sums, Workspace& work) const {
    if (sums.dk != work.dk_sums) return;
    dk.write(b, g, keys, {sums.dk, sums.row});
    dv.write(b, g, keys, {sums.dv, sums.row});
  }

  // What all tiles of a block of queries need.
  void prepare(int64_t b, int64_t h, Range queries, Rows q, Rows dy_rows, Workspace& work) const {
    const int64_t D = attention.D;
    const TileSpans& spans = tile_spans();
    spans.transpose(q.data, q.row, work.transposed_q, kTileQueries, queries.count(), D);
    spans.transpose(dy_rows.data, dy_rows.row, work.transposed_dy, kTileQueries, queries.count(),
                    D);
    const Rows y_rows = y.elements(b, h, queries, work.dq);
    const float* from = lse.as<float>() + b * lse.strides[0] + h * lse.strides[1];
    for (int64_t i = 0; i < queries.count(); ++i) {
      work.mean[i] = static_cast<float>(
          row_spans().dot(dy_rows.data + i * dy_rows.row, y_rows.data + i * y_rows.row, D));
      const float value = from[(queries.begin + i) * lse.strides[2]];
      work.log_sum_exp[i] = value == -std::numeric_limits<float>::infinity() ? 0.0F : value;
    }
    std::fill_n(work.dq, kTileQueries * width(), 0.0F);
  }

  // Weights and the gradient of their scores.
  void weigh(int64_t b, int64_t h, Range queries, Range keys, Rows k, Workspace& work) const {
    const Rows v = attention.v.elements(b, attention.key_head(h), keys, work.v);
    const auto scores = [&](Rows rows, const float* transposed, float* to) -> TileProduct {
      return {.a = rows.data,
              .a_row = rows.row,
              .a_column = 1,
              .b = transposed,
              .b_row = kTileQueries,
              .c = to,
              .c_row = kTileQueries,
              .rows = keys.count(),
              .columns = queries.count(),
              .depth = attention.D,
              .onto = Onto::zeros};
    };
    work.sight.multiply_scores(scores(k, work.transposed_q, work.weights));
    work.sight.multiply_scores(scores(v, work.transposed_dy, work.gradient));
    const DropoutSpan drop = attention.drop(b, h, queries, keys);
    tile_spans().weigh_backward({.scores = work.weights,
                                 .allowed = work.sight.allowed(),
                                 .row = kTileQueries,
                                 .keys = keys.count(),
                                 .queries = queries.count(),
                                 .scale = static_cast<float>(attention.attributes.mask.scale),
                                 .softcap = static_cast<float>(attention.attributes.softcap),
                                 .drop = attention.drops() ? &drop : nullptr,
                                 .dropout_stride = static_cast<uint32_t>(attention.K)},
                                work.gradient, work.log_sum_exp, work.mean);
  }

  void add_to_keys(Range queries, Range keys, Rows q, Rows dy_rows, const Sums& sums,
                   const Workspace& work) const {
    const int64_t offset = (keys.begin - sums.first) * sums.row;
    const auto add = [&](const float* weights, Rows rows, float* to) {
      work.sight.multiply_onto_keys({.a = weights,
                                     .a_row = kTileQueries,
                                     .a_column = 1,
                                     .b = rows.data,
                                     .b_row = rows.row,
                                     .c = to + offset,
                                     .c_row = sums.row,
                                     .rows = keys.count(),
                                     .columns = attention.D,
                                     .depth = queries.count()});
    };
    add(work.weights, dy_rows, sums.dv);
    add(work.gradient, q, sums.dk);
  }

  void add_to_queries(Range queries, Range keys, Rows k, const Workspace& work) const {
    work.sight.multiply_onto_queries({.a = work.gradient,
                                      .a_row = 1,
                                      .a_column = kTileQueries,
                                      .b = k.data,
                                      .b_row = k.row,
                                      .c = work.dq,
                                      .c_row = width(),
                                      .rows = queries.count(),
                                      .columns = attention.D,
                                      .depth = keys.count()});
  }
};

// With this many key heads in the batch each is a task of its own, in which a tile is weighed once
// for all gradients. With fewer, blocks of queries and then blocks of keys are the tasks, and every
// tile is weighed twice.
constexpr int64_t kEnoughHeads = 4;

bool sums_in_place(const Backward& backward) {
  return backward.dk.sums(0, 0) != nullptr && backward.dv.sums(0, 0) != nullptr;
}

void run_by_heads(const Backward& backward, int threads) {
  const Attention& attention = backward.attention;
  const int64_t rows = sums_in_place(backward) ? 0 : attention.K;
  for_tasks(
      attention.B * attention.G, threads, [&] { return Workspace(attention, rows); },
      [&](int64_t task, Workspace& work) {
        backward.run_keys(task / attention.G, task % attention.G, {0, attention.K}, Pass::both,
                          work);
      });
}

void run_by_blocks(const Backward& backward, int threads) {
  const Attention& attention = backward.attention;
  const int64_t query_blocks = blocks_in(attention.Q, kTileQueries);
  for_tasks(
      attention.B * attention.H * query_blocks, threads, [&] { return Workspace(attention, 0); },
      [&](int64_t task, Workspace& work) {
        const int64_t head = task / query_blocks;
        const int64_t block = in_pairs(task % query_blocks, query_blocks);
        backward.run_block(head / attention.H, head % attention.H,
                           block_of(block, kTileQueries, attention.Q), {0, attention.K},
                           Pass::queries, {}, work);
      });
  const int64_t key_blocks = blocks_in(attention.K, kTileKeys);
  const int64_t rows = sums_in_place(backward) ? 0 : kTileKeys;
  for_tasks(
      attention.B * attention.G * key_blocks, threads, [&] { return Workspace(attention, rows); },
      [&](int64_t task, Workspace& work) {
        const int64_t head = task / key_blocks;
        const int64_t block = in_pairs(task % key_blocks, key_blocks);
        backward.run_keys(head / attention.G, head % attention.G,
                          block_of(block, kTileKeys, attention.K), Pass::keys, work);
      });
}

}  // namespace

void flash_attention_backward(const KernelArgs& args) {
  const Backward backward(args);
  const Attention& attention = backward.attention;
  const int threads =
      threads_for(attention.B * attention.H * attention.Q * attention.K, args.threads);
  if (attention.B * attention.G >= kEnoughHeads) {
    run_by_heads(backward, threads);
  } else {
    run_by_blocks(backward, threads);
  }
}

}  // namespace faultline::cpu
