// Cross-entropy over large vocabularies. The softmax is never stored: the forward pass reads the
// logits once in chunks (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/indices.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = kBlock;

// Throws for the first label that is neither a class nor ignored.
void check_labels(const Indices& labels, int64_t rows, int64_t classes, int64_t ignored) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t label = labels[row];
    require(
        label == ignored || (label >= 0 && label < classes),
        "cross_entropy: the label of row {} is {}; expected 0 to {}, or {} for a row to ignore. "
        "Check the labels against the vocabulary.",
        row, label, classes - 1, ignored);
  }
}

// ln sum_i exp(x_i) of n logits from `begin` on.
double log_sum_exp(Source& logits, int64_t begin, int64_t n) {
  const RowSpans& spans = row_spans();
  float largest = -kInfinity;
  double total = 0;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const float* x = logits.read(begin + i, count);
    const float larger = std::max(largest, spans.max(x, count));
    // Nothing but -infinity so far: any finite shift keeps their exponentials 0, and NaNs NaN.
    const float shift = larger == -kInfinity ? 0.0F : larger;
    if (larger != largest) total *= std::exp(static_cast<double>(largest) - shift);
    total += spans.sum_of_exp(x, count, shift);
    largest = larger;
  }
  const double shift = largest == -kInfinity ? 0.0 : largest;
  return shift + std::log(total);
}

}  // namespace

// loss = ln sum_j exp(x_j) - x_label
void cross_entropy(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const int64_t rows = logits.shape[0];
  const int64_t classes = logits.shape[1];
  const int64_t ignored = args.attributes.as<CrossEntropyAttributes>().ignore_index;
  const Indices labels(args.inputs[1]);
  check_labels(labels, rows, classes, ignored);
  const Layout x(logits, logits.shape);
  const Layout loss(args.outputs[0], args.outputs[0].shape);
  const Layout lse(args.outputs[1], args.outputs[1].shape);
  for_rows(rows, classes, args.threads, [&](int64_t begin, int64_t end) {
    Source source(x);
    Sink losses(loss);
    Sink sums(lse);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t label = labels[row];
      const double total = log_sum_exp(source, row * classes, classes);
      *sums.slot(row, 1) = static_cast<float>(total);
      *losses.slot(row, 1) =
          label == ignored ? 0.0F
                           : static_cast<float>(total - *source.read(row * classes + label, 1));
      sums.commit(row, 1);
      losses.commit(row, 1);
    }
  });
}

// dx_j = (exp(x_j - lse) - [j = label]) dloss
void cross_entropy_backward(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const int64_t rows = logits.shape[0];
  const int64_t classes = logits.shape[1];
  const int64_t ignored = args.attributes.as<CrossEntropyAttributes>().ignore_index;
  const Indices labels(args.inputs[1]);
  check_labels(labels, rows, classes, ignored);
  const RowSpans& spans = row_spans();
  const Layout x(logits, logits.shape);
  const Layout lse(args.inputs[2], {rows});
  const Layout dloss(args.inputs[3], {rows});
  const Layout dx(args.outputs[0], args.outputs[0].shape);
  for_rows(rows, classes, args.threads, [&](int64_t begin, int64_t end) {
    Source source(x);
    Source sums(lse);
    Source gradients(dloss);
    Sink sink(dx);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t label = labels[row];
      const float shift = *sums.read(row, 1);
      const float factor = *gradients.read(row, 1);
      for (int64_t i = 0; i < classes; i += kChunk) {
        const int64_t n = std::min(kChunk, classes - i);
        float* to = sink.slot(row * classes + i, n);
        if (label == ignored) {
          std::fill_n(to, n, 0.0F);
        } else {
          const float* from = source.read(row * classes + i, n);
          const bool holds_label = label >= i && label < i + n;
          float probability = 0;
          if (holds_label) spans.scaled_exp(from + label - i, &probability, 1, shift, 1.0F);
          spans.scaled_exp(from, to, n, shift, factor);
          if (holds_label) to[label - i] = (probability - 1.0F) * factor;
        }
        sink.commit(row * classes + i, n);
      }
    }
  });
}

}  // namespace faultline::cpu
