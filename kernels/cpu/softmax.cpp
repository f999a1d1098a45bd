// Softmax over the last dimension, plain, logarithmic and masked.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/cpu/visibility.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls body(inputs..., output, n) for each row of the last dimension.
template <class Body>
void map_rows(const KernelArgs& args, const Body& body) {
  const Shape& shape = args.outputs[0].shape;
  if (args.outputs[0].numel() == 0) return;
  const auto [rows, columns] = rows_of(shape);
  const Layout first(args.inputs[0], shape);
  const Layout second(args.input_count > 1 ? args.inputs[1] : args.inputs[0], shape);
  const Layout out(args.outputs[0], shape);
  const int64_t n = columns;
  for_rows(rows, n, args.threads, [&](int64_t begin, int64_t end) {
    Source a(first);
    Source b(second);
    Sink y(out);
    for (int64_t row = begin; row < end; ++row) {
      const float* x0 = a.read(row * n, n);
      const float* x1 = args.input_count > 1 ? b.read(row * n, n) : nullptr;
      body(x0, x1, y.slot(row * n, n), n);
      y.commit(row * n, n);
    }
  });
}

}  // namespace

// y_i = exp(x_i - max x) / sum_j exp(x_j - max x)
void softmax(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* x, const float*, float* y, int64_t n) {
    const double total = spans.exp_and_sum(x, y, n, spans.max(x, n));
    arithmetic_spans().scale(y, y, n, static_cast<float>(1 / total));
  });
}

// dx = y (dy - sum(y dy))
void softmax_backward(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* dy, const float* y, float* dx, int64_t n) {
    spans.softmax_backward(dy, y, dx, n, static_cast<float>(spans.dot(dy, y, n)));
  });
}

// y_i = (x_i - max x) - ln sum_j exp(x_j - max x)
void log_softmax(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* x, const float*, float* y, int64_t n) {
    const float largest = spans.max(x, n);
    const double total = spans.sum_of_exp(x, n, largest);
    spans.subtract_both(x, y, n, largest, static_cast<float>(std::log(total)));
  });
}

// dx = dy - exp(y) sum(dy)
void log_softmax_backward(const KernelArgs& args) {
  const RowSpans& spans = row_spans();
  map_rows(args, [&](const float* dy, const float* y, float* dx, int64_t n) {
    spans.log_softmax_backward(dy, y, dx, n, static_cast<float>(spans.sum(dy, n)));
  });
}

namespace {

// Softmax of scale * x over the allowed ones of n keys. A score that is not allowed is never used,
// so that whatever it holds cannot reach the others.
void softmax_allowed(const float* x, const float* allowed, float* y, int64_t n, float scale) {
  const RowSpans& spans = row_spans();
  spans.select(allowed, x, y, n, scale, -kInfinity);
  const double total = spans.exp_and_sum(y, y, n, spans.max(y, n));
  spans.select(allowed, y, y, n, static_cast<float>(1 / total), 0.0F);
}

void softmax_prefix(const float* x, float* y, int64_t n, float scale) {
  const RowSpans& spans = row_spans();
  const double total = spans.exp_and_sum(y, y, n, spans.scale_and_max(x, y, n, scale));
  arithmetic_spans().scale(y, y, n, static_cast<float>(1 / total));
}

}  // namespace

void masked_softmax(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape;
  if (args.outputs[0].numel() == 0) return;
  const int64_t queries = shape[-2];
  const int64_t keys = shape[-1];
  const int64_t heads = shape.rank() > 3 ? shape[-3] : 1;
  const auto mask = args.attributes.as<MaskAttributes>();
  const Visibility visibility(mask, args.inputs[1], args.inputs[2], queries, keys,
                              "masked_softmax");
  const auto scale = static_cast<float>(mask.scale);
  const Layout scores(args.inputs[0], shape);
  const Layout weights(args.outputs[0], shape);
  for_rows(rows_of(shape).rows, keys, args.threads, [&](int64_t begin, int64_t end) {
    Source source(scores);
    Sink sink(weights);
    Buffer allowed_keys;
    float* const allowed = visibility.has_gaps() ? allowed_keys.get(keys) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = row % queries;
      const int64_t n = visibility.reach(query);
      const int64_t visible =
          allowed ? visibility.allow(row / (queries * heads), query, allowed) : n;
      float* y = sink.slot(row * keys, keys);
      const float* x = n > 0 ? source.read(row * keys, n) : nullptr;
      if (visible == 0) {
        std::fill_n(y, keys, 0.0F);
      } else if (visible == n) {
        softmax_prefix(x, y, n, scale);
      } else {
        softmax_allowed(x, allowed, y, n, scale);
      }
      std::fill(y + n, y + keys, 0.0F);
      sink.commit(row * keys, keys);
    }
  });
}

}  // namespace faultline::cpu
