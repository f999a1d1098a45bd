#include "kernels/cpu/attention_tiles.h"

#include <cmath>

namespace faultline::cpu {

// ---- rows ---------------------------------------------------------------------------------------

std::byte* HeadRows::address(int64_t b, int64_t h, int64_t t) const {
  const int64_t offset = b * view_.strides[0] + h * view_.strides[1] + t * view_.strides[2];
  return view_.data + offset * static_cast<int64_t>(size_of(view_.dtype));
}

Rows HeadRows::copied(int64_t b, int64_t h, Range rows, float* room) const {
  const int64_t row = padded(width_);
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    read_run(address(b, h, t), view_.dtype, view_.strides[3], room + (t - rows.begin) * row,
             width_);
  }
  return {room, row};
}

Rows HeadRows::elements(int64_t b, int64_t h, Range rows, float* room) const {
  if (!is_f32()) return copied(b, h, rows, room);
  return {reinterpret_cast<const float*>(address(b, h, rows.begin)), view_.strides[2]};
}

Rows HeadRows::vectors(int64_t b, int64_t h, Range rows, float* room) const {
  // Rows far apart share few lines of a cache, so they are copied too.
  return is_f32_without_gaps() ? elements(b, h, rows, room) : copied(b, h, rows, room);
}

void HeadRows::write(int64_t b, int64_t h, Range rows, Rows from) const {
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    write_run(from.data + (t - rows.begin) * from.row, address(b, h, t), view_.dtype,
              view_.strides[3], width_);
  }
}

float* HeadRows::sums(int64_t b, int64_t h) const {
  return is_f32_without_gaps() ? reinterpret_cast<float*>(address(b, h, 0)) : nullptr;
}

// ---- the launch ---------------------------------------------------------------------------------

namespace {

DropoutSpan first_span(const DropoutAttributes& attributes, const TensorView& key) {
  const int64_t* values = key.as<int64_t>();
  const int64_t stride = key.strides[0];
  const auto seed = static_cast<uint64_t>(values[0]);
  // The smallest word that is kept. For p > 1 - 2^-32 there is none: all are kept, times 0.
  const auto threshold = static_cast<uint64_t>(std::ceil(attributes.p * 0x1p32));
  const bool drops_all = threshold > UINT32_MAX;
  return {.first = 0,
          .sequence = static_cast<uint32_t>(values[2 * stride]),
          .layer = attributes.layer,
          .step = static_cast<uint32_t>(values[stride]),
          .seed_low = static_cast<uint32_t>(seed),
          .seed_high = static_cast<uint32_t>(seed >> 32),
          .threshold = drops_all ? 0 : static_cast<uint32_t>(threshold),
          .scale = drops_all ? 0 : static_cast<float>(1 / (1 - attributes.p))};
}

}  // namespace

Attention::Attention(const KernelArgs& args, const char* op)
    : B(args.inputs[0].shape[0]),
      H(args.inputs[0].shape[1]),
      G(args.inputs[1].shape[1]),
      Q(args.inputs[0].shape[2]),
      K(args.inputs[1].shape[2]),
      D(args.inputs[0].shape[3]),
      attributes(args.attributes.as<FlashAttentionAttributes>()),
      q(args.inputs[0]),
      k(args.inputs[1]),
      v(args.inputs[2]),
      visibility(attributes.mask, args.inputs[3], args.inputs[4], Q, K, op) {
  if (drops()) first_drop = first_span(attributes.dropout, args.inputs[5]);
}

bool Attention::may_see(Range queries, Range keys) const {
  const VisibleKeys first = visibility.ranges(queries.begin);
  const VisibleKeys last = visibility.ranges(queries.end - 1);
  return keys.begin < last.first || (keys.begin < last.end && keys.end > first.begin);
}

DropoutSpan Attention::drop(int64_t b, int64_t h, Range queries, Range keys) const {
  DropoutSpan span = first_drop;
  span.first = static_cast<uint32_t>((h * Q + queries.begin) * K + keys.begin);
  span.sequence += static_cast<uint32_t>(b);
  return span;
}

// ---- sight --------------------------------------------------------------------------------------

// The queries of the tile that the rule lets see each key. False: none sees any.
bool TileSight::fill_rule(Range queries, Range keys) {
  const MaskAttributes& mask = visibility_.mask();
  const int64_t first = mask.query_offset + queries.begin;
  bool any = false;
  sees_all_ = true;
  for (int64_t k = 0; k < key_count_; ++k) {
    const PositionRange seen = positions_that_see(mask, keys.begin + k);
    const Range own{std::clamp<int64_t>(seen.begin - first, 0, query_count_),
                    std::clamp<int64_t>(seen.end - first, 0, query_count_)};
    seen_by_[k] = own;
    any = any || own.begin < own.end;
    sees_all_ = sees_all_ && own.count() == query_count_;
  }
  return any;
}

void TileSight::fill_allowed(int64_t b, Range queries, Range keys) {
  int32_t own[kTileQueries] = {};
  if (visibility_.has_documents()) {
    const int64_t first = visibility_.mask().query_offset + queries.begin;
    for (int64_t q = 0; q < query_count_; ++q) own[q] = visibility_.document(b, first + q);
  }
  for (int64_t k = 0; k < key_count_; ++k) {
    float* const row = allowed_.get() + k * kTileQueries;
    std::fill_n(row, kTileQueries, 0.0F);
    if (!visibility_.is_valid(b, keys.begin + k)) continue;
    std::fill(row + seen_by_[k].begin, row + seen_by_[k].end, 1.0F);
    if (!visibility_.has_documents()) continue;
    const int32_t document = visibility_.document(b, keys.begin + k);
    for (int64_t q = 0; q < kTileQueries; ++q) row[q] = own[q] == document ? row[q] : 0.0F;
  }
}

bool TileSight::look(int64_t b, Range queries, Range keys) {
  query_count_ = queries.count();
  key_count_ = keys.count();
  if (!fill_rule(queries, keys)) return false;
  if (sees_all_ && !visibility_.depends_on_key()) return true;
  fill_allowed(b, queries, keys);
  if (!visibility_.depends_on_key()) return true;
  int64_t allowed = 0;
  for (int64_t k = 0; k < key_count_; ++k) {
    const float* const row = allowed_.get() + k * kTileQueries;
    allowed += std::count(row, row + query_count_, 1.0F);
  }
  sees_all_ = allowed == key_count_ * query_count_;
  return allowed > 0;
}

Range TileSight::keys_seen_by(Range queries) const {
  Range result{key_count_, 0};
  for (int64_t k = 0; k < key_count_; ++k) {
    if (seen_by_[k].begin >= queries.end || seen_by_[k].end <= queries.begin) continue;
    if (seen_by_[k].begin == seen_by_[k].end) continue;
    result = {std::min(result.begin, k), k + 1};
  }
  return result.begin < result.end ? result : Range{0, 0};
}

Range TileSight::queries_that_see(Range keys) const {
  Range result{query_count_, 0};
  for (int64_t k = keys.begin; k < keys.end; ++k) {
    if (seen_by_[k].begin == seen_by_[k].end) continue;
    result.begin = std::min(result.begin, seen_by_[k].begin);
    result.end = std::max(result.end, seen_by_[k].end);
  }
  return result.begin < result.end ? result : Range{0, 0};
}

// ---- products -----------------------------------------------------------------------------------

namespace {

// Rows or columns that a product is cut into where a mask leaves some of it out.
constexpr int64_t kStrip = 16;

TileProduct rows_of(const TileProduct& whole, Range rows) {
  TileProduct part = whole;
  part.a += rows.begin * whole.a_row;
  part.c += rows.begin * whole.c_row;
  if (whole.factors != nullptr) part.factors += rows.begin;
  part.rows = rows.count();
  return part;
}

TileProduct columns_of(const TileProduct& whole, Range columns) {
  TileProduct part = whole;
  part.b += columns.begin;
  part.c += columns.begin;
  part.columns = columns.count();
  return part;
}

TileProduct depth_of(const TileProduct& whole, Range depth) {
  TileProduct part = whole;
  part.a += depth.begin * whole.a_column;
  part.b += depth.begin * whole.b_row;
  part.depth = depth.count();
  return part;
}

bool right_side_is_finite(const TileProduct& product) {
  for (int64_t k = 0; k < product.depth; ++k) {
    if (!tile_spans().all_finite(product.b + k * product.b_row, product.columns)) return false;
  }
  return true;
}

// Strip by strip of rows, each over the part of the depth that `seen` names.
template <class Seen>
void multiply_strips(const TileProduct& product, const Seen& seen) {
  const TileSpans& spans = tile_spans();
  for (int64_t i = 0; i < product.rows; i += kStrip) {
    const Range rows{i, std::min(product.rows, i + kStrip)};
    spans.multiply(depth_of(rows_of(product, rows), seen(rows)));
  }
}

}  // namespace

void TileSight::multiply_scores(const TileProduct& product) const {
  const TileSpans& spans = tile_spans();
  if (sees_all_) return spans.multiply(product);
  for (int64_t j = 0; j < product.columns; j += kStrip) {
    const Range columns{j, std::min(product.columns, j + kStrip)};
    spans.multiply(columns_of(rows_of(product, keys_seen_by(columns)), columns));
  }
}

void TileSight::multiply_onto_queries(const TileProduct& product) const {
  if (sees_all_) return tile_spans().multiply(product);
  if (!right_side_is_finite(product)) {
    return tile_spans().multiply_allowed(product, allowed_.get(), 1, kTileQueries);
  }
  multiply_strips(product, [this](Range queries) { return keys_seen_by(queries); });
}

void TileSight::multiply_onto_keys(const TileProduct& product) const {
  if (sees_all_) return tile_spans().multiply(product);
  if (!right_side_is_finite(product)) {
    return tile_spans().multiply_allowed(product, allowed_.get(), kTileQueries, 1);
  }
  multiply_strips(product, [this](Range keys) { return queries_that_see(keys); });
}

}  // namespace faultline::cpu
