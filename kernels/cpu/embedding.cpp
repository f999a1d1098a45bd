// Rows of a table by id, and their gradient.
#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/indices.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

void check_ids(const Indices& ids, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ids[i];
    require(id >= 0 && id < rows,
            "embedding: id {} at place {} is outside the table of {} rows. Check the tokenizer "
            "against the vocabulary size.",
            id, i, rows);
  }
}

}  // namespace

void embedding(const KernelArgs& args) {
  const TensorView& weight = args.inputs[0];
  const int64_t columns = weight.shape[1];
  const int64_t count = args.inputs[1].numel();
  const Indices ids(args.inputs[1]);
  check_ids(ids, count, weight.shape[0]);
  const Layout from(weight, weight.shape);
  const Layout to(args.outputs[0], args.outputs[0].shape);
  for_rows(count, columns, args.threads, [&](int64_t begin, int64_t end) {
    Source source(from);
    Sink sink(to);
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(source.read(ids[i] * columns, columns), columns, sink.slot(i * columns, columns));
      sink.commit(i * columns, columns);
    }
  });
}

// dweight[id] = sum over the places of id of dy, in the order of places. A range of the table's
// rows looks through all ids, so there is one order for any number of threads.
void embedding_backward(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& dweight = args.outputs[0];
  const int64_t rows = dweight.shape[0];
  const int64_t columns = dweight.shape[1];
  const int64_t count = args.inputs[1].numel();
  const Indices ids(args.inputs[1]);
  check_ids(ids, count, rows);
  float* const table = dweight.as<float>();
  invariant(dweight.is_contiguous(), "embedding_backward: writes a contiguous table");
  const ArithmeticSpans& spans = arithmetic_spans();
  const Layout from(dy, dy.shape);
  constexpr int64_t kMostRanges = 64;
  const int64_t ranges = std::clamp<int64_t>(dweight.numel() / kPiece, 1, kMostRanges);
  const int64_t range = std::max<int64_t>(1, (rows + ranges - 1) / ranges);
  const int threads = threads_for(dweight.numel(), args.threads);
  for_pieces(rows, range, threads, [&](int64_t begin, int64_t end) {
    Source source(from);
    std::fill(table + begin * columns, table + end * columns, 0.0F);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = ids[i];
      if (id < begin || id >= end) continue;
      float* const row = table + id * columns;
      spans.add(row, source.read(i * columns, columns), row, columns);
    }
  });
}

}  // namespace faultline::cpu
