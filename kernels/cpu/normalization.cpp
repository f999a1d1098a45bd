// Normalisation over the last dimension.
//   layer_norm (Ba, Kiros and Hinton, 2016):
//     z = (x - mean) rstd, rstd = 1 / sqrt(var + epsilon), y = z weight + bias
//   rms_norm (Zhang and Sennrich, 2019), the same with 0 in the place of the mean and no bias:
//     z = x rstd, rstd = 1 / sqrt(mean(x^2) + epsilon), y = z weight
// Mean and variance are taken in f64, the variance in a second pass over the row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// A weight or bias of one row, or null where there is none.
class Parameter {
 public:
  explicit Parameter(const TensorView& view)
      : layout_(view, view.shape),
        source_(layout_),
        n_(view.defined() ? view.numel() : 0),
        values_(view.defined() ? source_.read(0, n_) : nullptr) {}
  const float* values() const { return values_; }

 private:
  Layout layout_;
  Source source_;
  int64_t n_;
  const float* values_;
};

void store(const TensorView& view, const Layout& layout, const float* values) {
  Sink sink(layout);
  const int64_t n = view.numel();
  std::copy_n(values, n, sink.slot(0, n));
  sink.commit(0, n);
}

}  // namespace

void layer_norm(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const auto [rows, columns] = rows_of(x.shape);
  const int64_t n = columns;
  const double epsilon = args.attributes.as<LayerNormAttributes>().epsilon;
  if (x.numel() == 0) return;
  const Parameter weight(args.inputs[1]);
  const Parameter bias(args.inputs[2]);
  const RowSpans& spans = row_spans();
  const Layout from(x, x.shape);
  const Layout to(args.outputs[0], x.shape);
  const Layout mean_to(args.outputs[1], args.outputs[1].shape);
  const Layout rstd_to(args.outputs[2], args.outputs[2].shape);
  for_rows(rows, n, args.threads, [&](int64_t begin, int64_t end) {
    Source source(from);
    Sink sink(to);
    Sink means(mean_to);
    Sink rstds(rstd_to);
    for (int64_t row = begin; row < end; ++row) {
      const float* values = source.read(row * n, n);
      const double mean = spans.sum(values, n) / static_cast<double>(n);
      const double variance = spans.sum_of_squares(values, n, mean) / static_cast<double>(n);
      const auto rstd = static_cast<float>(1 / std::sqrt(variance + epsilon));
      spans.normalize(values, weight.values(), bias.values(), sink.slot(row * n, n), n,
                      static_cast<float>(mean), rstd);
      sink.commit(row * n, n);
      *means.slot(row, 1) = static_cast<float>(mean);
      means.commit(row, 1);
      *rstds.slot(row, 1) = rstd;
      rstds.commit(row, 1);
    }
  });
}

void rms_norm(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const auto [rows, columns] = rows_of(x.shape);
  const int64_t n = columns;
  const double epsilon = args.attributes.as<RmsNormAttributes>().epsilon;
  if (x.numel() == 0) return;
  const Parameter weight(args.inputs[1]);
  const RowSpans& spans = row_spans();
  const Layout from(x, x.shape);
  const Layout to(args.outputs[0], x.shape);
  const Layout rstd_to(args.outputs[1], args.outputs[1].shape);
  for_rows(rows, n, args.threads, [&](int64_t begin, int64_t end) {
    Source source(from);
    Sink sink(to);
    Sink rstds(rstd_to);
    for (int64_t row = begin; row < end; ++row) {
      const float* values = source.read(row * n, n);
      const double mean_square = spans.sum_of_squares(values, n, 0) / static_cast<double>(n);
      const auto rstd = static_cast<float>(1 / std::sqrt(mean_square + epsilon));
      spans.normalize(values, weight.values(), nullptr, sink.slot(row * n, n), n, 0, rstd);
      sink.commit(row * n, n);
      *rstds.slot(row, 1) = rstd;
      rstds.commit(row, 1);
    }
  });
}

namespace {

// Rows are cut into at most this many parts, a border that only their count decides. Each adds up
// its dweight and dbias; the parts are then added in order.
constexpr int64_t kMostParts = 32;
constexpr int64_t kFewestRows = 16;

int64_t rows_per_part(int64_t rows) {
  return std::max(kFewestRows, (rows + kMostParts - 1) / kMostParts);
}

struct Totals {
  Totals(int64_t parts, int64_t columns)
      : stride((columns + kTotalsMultiple - 1) / kTotalsMultiple * kTotalsMultiple),
        values(static_cast<size_t>(2 * parts * stride)) {}
  double* dweight(int64_t part) { return values.data() + 2 * part * stride; }
  double* dbias(int64_t part) { return dweight(part) + stride; }

  int64_t stride;
  std::vector<double> values;
};

// The sums over all parts, of dweight or of dbias.
void store_totals(const TensorView& view, Totals& totals, int64_t parts, int64_t offset) {
  if (!view.defined()) return;
  const int64_t n = view.numel();
  std::vector<float> sums(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += totals.dweight(part)[offset + i];
    sums[static_cast<size_t>(i)] = static_cast<float>(total);
  }
  store(view, Layout(view, view.shape), sums.data());
}

}  // namespace

namespace {

// What the derivatives of both norms read and write.
struct Derivative {
  const TensorView& dy;
  const TensorView& x;
  const TensorView& weight;
  const TensorView& mean;  // absent: 0 for every row, and no part of the derivative
  const TensorView& rstd;
  const TensorView& dx;
  const TensorView& dweight;
  const TensorView& dbias;
};

// With g = dy weight: dx = rstd (g - mean(g) - z mean(g z)), where mean(g) comes from the mean
// alone; dweight = sum over rows of dy z, dbias = sum over rows of dy.
void differentiate(const Derivative& views, int most_threads) {
  const TensorView& x = views.x;
  const auto [rows, columns] = rows_of(x.shape);
  const int64_t n = columns;
  const int64_t total_rows = rows;
  const Parameter weight(views.weight);
  const RowSpans& spans = row_spans();
  const Layout dy_from(views.dy, x.shape);
  const Layout x_from(x, x.shape);
  const Layout mean_from(views.mean, views.mean.shape);
  const Layout rstd_from(views.rstd, views.rstd.shape);
  const Layout dx_to(views.dx, x.shape);
  const int64_t piece = rows_per_part(total_rows);
  const int64_t parts = (total_rows + piece - 1) / piece;
  const bool wants_totals = views.dweight.defined() || views.dbias.defined();
  Totals totals(wants_totals ? parts : 0, n);

  const int threads = threads_for(total_rows * n, most_threads);
  for_pieces(n > 0 ? total_rows : 0, piece, threads, [&](int64_t begin, int64_t end) {
    Source dy_source(dy_from);
    Source x_source(x_from);
    Source means(mean_from);
    Source rstds(rstd_from);
    Sink sink(dx_to);
    for (int64_t row = begin; row < end; ++row) {
      const float* dy = dy_source.read(row * n, n);
      const float* values = x_source.read(row * n, n);
      const float mean = views.mean.defined() ? *means.read(row, 1) : 0.0F;
      const float rstd = *rstds.read(row, 1);
      if (wants_totals) {
        spans.normalize_totals(dy, values, totals.dweight(begin / piece),
                               totals.dbias(begin / piece), n, mean, rstd);
      }
      if (!views.dx.defined()) continue;
      double sums[2];
      spans.normalize_sums(dy, values, weight.values(), n, mean, rstd, sums);
      const auto count = static_cast<double>(n);
      const double mean_g = views.mean.defined() ? sums[0] / count : 0;
      spans.normalize_backward(dy, values, weight.values(), sink.slot(row * n, n), n, mean, rstd,
                               static_cast<float>(mean_g), static_cast<float>(sums[1] / count));
      sink.commit(row * n, n);
    }
  });
  store_totals(views.dweight, totals, parts, 0);
  store_totals(views.dbias, totals, parts, totals.stride);
}

}  // namespace

void layer_norm_backward(const KernelArgs& args) {
  differentiate({.dy = args.inputs[0],
                 .x = args.inputs[1],
                 .weight = args.inputs[2],
                 .mean = args.inputs[3],
                 .rstd = args.inputs[4],
                 .dx = args.outputs[0],
                 .dweight = args.outputs[1],
                 .dbias = args.outputs[2]},
                args.threads);
}

void rms_norm_backward(const KernelArgs& args) {
  const TensorView none;
  differentiate({.dy = args.inputs[0],
                 .x = args.inputs[1],
                 .weight = args.inputs[2],
                 .mean = none,
                 .rstd = args.inputs[3],
                 .dx = args.outputs[0],
                 .dweight = args.outputs[1],
                 .dbias = none},
                args.threads);
}

}  // namespace faultline::cpu
