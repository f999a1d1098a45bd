// Rotary positions (Su et al., "RoFormer", 2021): each pair of a head's elements turned by its
// angle.
#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// A table [1 or B, T, D / 2] as it meets the rows of x: [1 or B, 1, T, D / 2].
TensorView for_every_head(TensorView table) {
  table.shape = {table.shape[0], 1, table.shape[1], table.shape[2]};
  table.strides = {table.strides[0], 0, table.strides[1], table.strides[2]};
  return table;
}

}  // namespace

// Inputs x [B, H, T, D], cosines and sines [1 or B, T, D / 2].
void rope(const KernelArgs& args) {
  const auto attributes = args.attributes.as<RopeAttributes>();
  const Shape& shape = args.inputs[0].shape;
  const int64_t D = shape[3];
  const int64_t pairs = D / 2;
  const Shape angles{shape[0], shape[1], shape[2], pairs};
  const Layout from(args.inputs[0], shape);
  const Layout cosines_from(for_every_head(args.inputs[1]), angles);
  const Layout sines_from(for_every_head(args.inputs[2]), angles);
  const Layout to(args.outputs[0], shape);
  const RowSpans& spans = row_spans();
  const auto turn =
      attributes.layout == RopeLayout::half_split ? spans.turn_halves : spans.turn_neighbours;
  const float sign = attributes.turn == RopeTurn::forward ? 1.0F : -1.0F;
  for_rows(shape[0] * shape[1] * shape[2], D, args.threads, [&](int64_t begin, int64_t end) {
    Source source(from);
    Source cosines(cosines_from);
    Source sines(sines_from);
    Sink sink(to);
    for (int64_t row = begin; row < end; ++row) {
      turn(source.read(row * D, D), cosines.read(row * pairs, pairs),
           sines.read(row * pairs, pairs), sink.slot(row * D, D), pairs, sign);
      sink.commit(row * D, D);
    }
  });
}

}  // namespace faultline::cpu
