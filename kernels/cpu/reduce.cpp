// Sum and mean over any set of dimensions.
#include <algorithm>
#include <vector>

#include "kernels/attributes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

// Every sum is taken in f64 and rounded once at the end: with n terms the error is at most
// (n - 1) 2^-53 sum |x_i| plus half an ulp of the result in its own dtype.
namespace faultline::cpu {
namespace {

// The input's dimensions, neighbours of one kind merged. Those that stay lead the output's order.
struct ReducePlan {
  struct Dimension {
    int64_t size;
    int64_t stride;  // elements of the input
    bool reduced;
  };
  int rank = 0;
  Dimension dims[kMaxRank];
  int64_t outputs = 1;  // elements of the result
  int64_t terms = 1;    // elements in one sum
};

ReducePlan plan_reduction(const TensorView& x, uint32_t reduced_dims) {
  ReducePlan plan;
  for (int d = 0; d < x.shape.rank(); ++d) {
    const bool reduced = (reduced_dims >> d & 1U) != 0;
    (reduced ? plan.terms : plan.outputs) *= x.shape[d];
    if (x.shape[d] == 1) continue;
    auto& last = plan.dims[std::max(0, plan.rank - 1)];
    if (plan.rank > 0 && last.reduced == reduced && last.stride == x.shape[d] * x.strides[d]) {
      last = {last.size * x.shape[d], x.strides[d], reduced};
    } else {
      plan.dims[plan.rank++] = {x.shape[d], x.strides[d], reduced};
    }
  }
  if (plan.rank == 0) plan.dims[plan.rank++] = {1, 1, true};
  return plan;
}

// The dimensions of one kind of `plan` except the last dimension: a view to walk over.
Layout outer_layout(const TensorView& x, const ReducePlan& plan, bool reduced) {
  Shape shape;
  Strides strides;
  for (int d = 0; d + 1 < plan.rank; ++d) {
    if (plan.dims[d].reduced != reduced) continue;
    shape.push_back(plan.dims[d].size);
    strides.push_back(plan.dims[d].stride);
  }
  return Layout({x.data, x.dtype, shape, strides}, shape);
}

std::byte* address_of(const Layout& layout, int64_t i) {
  std::byte* found = layout.data;
  layout.each_run(i, 1, [&](std::byte* address, int64_t, int64_t) { found = address; });
  return found;
}

// `n` elements from `address` on, as a layout to read.
Layout line(std::byte* address, DType dtype, int64_t n, int64_t stride) {
  return Layout({address, dtype, {n}, {stride}}, {n});
}

// The last dimension is reduced. A sum is the left fold of the sums of its segments: runs of the
// last dimension, cut after kPiece elements. So it is the same whether one thread adds it up or
// several take segments.
struct TrailingSum {
  const TensorView& x;
  const ReducePlan& plan;
  Layout kept = outer_layout(x, plan, false);
  Layout reduced = outer_layout(x, plan, true);
  int64_t length = plan.dims[plan.rank - 1].size;
  int64_t stride = plan.dims[plan.rank - 1].stride;
  int64_t cuts = (length + kPiece - 1) / kPiece;
  int64_t segments = plan.terms / length * cuts;

  double segment(int64_t output, int64_t i) const {
    const int64_t offset = (address_of(reduced, i / cuts) - x.data) +
                           i % cuts * kPiece * stride * static_cast<int64_t>(size_of(x.dtype));
    const int64_t n = std::min(kPiece, length - i % cuts * kPiece);
    const Layout layout = line(address_of(kept, output) + offset, x.dtype, n, stride);
    Source source(layout);
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      total += row_spans().sum(source.read(begin, count), count);
    }
    return total;
  }

  template <class Store>
  void run(int threads, const Store& store) const {
    if (plan.outputs >= 2 * threads || segments == 1) {
      for_rows(plan.outputs, plan.terms, threads, [&](int64_t begin, int64_t end) {
        for (int64_t output = begin; output < end; ++output) {
          double total = 0;
          for (int64_t i = 0; i < segments; ++i) total += segment(output, i);
          store(output, total);
        }
      });
      return;
    }
    std::vector<double> parts(static_cast<size_t>(segments));
    for (int64_t output = 0; output < plan.outputs; ++output) {
      for_rows(segments, plan.terms / segments, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) parts[i] = segment(output, i);
      });
      double total = 0;
      for (const double part : parts) total += part;
      store(output, total);
    }
  }
};

// The last dimension stays: whole rows are added, a block of columns at a time.
struct LeadingSum {
  static constexpr int64_t kColumns = 128;

  const TensorView& x;
  const ReducePlan& plan;
  Layout kept = outer_layout(x, plan, false);
  Layout reduced = outer_layout(x, plan, true);
  int64_t columns = plan.dims[plan.rank - 1].size;
  int64_t stride = plan.dims[plan.rank - 1].stride;

  void add_rows(std::byte* first, int64_t n, double* totals) const {
    const RowSpans& spans = row_spans();
    reduced.each_run(0, plan.terms, [&](std::byte* address, int64_t step, int64_t rows) {
      std::byte* row = first + (address - x.data);
      if (x.dtype == DType::f32 && stride == 1) {
        return spans.add_rows_to_totals(reinterpret_cast<const float*>(row), step, rows, totals, n);
      }
      Layout layout = line(row, x.dtype, n, stride);
      Source source(layout);
      for (int64_t i = 0; i < rows; ++i) {
        layout.data = row + i * step * static_cast<int64_t>(size_of(x.dtype));
        spans.add_rows_to_totals(source.read(0, n), 0, 1, totals, n);
      }
    });
  }

  template <class Store>
  void run(int threads, const Store& store) const {
    const int64_t blocks = (columns + kColumns - 1) / kColumns;
    const int64_t planes = plan.outputs / columns;
    for_rows(planes * blocks, kColumns * plan.terms, threads, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t column = item % blocks * kColumns;
        const int64_t n = std::min(kColumns, columns - column);
        double totals[kColumns] = {};
        const int64_t offset = column * stride * static_cast<int64_t>(size_of(x.dtype));
        add_rows(address_of(kept, item / blocks) + offset, n, totals);
        for (int64_t i = 0; i < n; ++i) store(item / blocks * columns + column + i, totals[i]);
      }
    });
  }
};

void reduce(const KernelArgs& args, double factor) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const Layout to(y, y.shape);
  const auto width = static_cast<int64_t>(size_of(y.dtype));
  const auto store = [&](int64_t i, double total) {
    std::byte* const address = to.is_dense() ? to.data + i * width : address_of(to, i);
    with_type(y.dtype,
              [&]<class T>() { *reinterpret_cast<T*>(address) = convert<T>(total * factor); });
  };
  const ReducePlan plan = plan_reduction(x, args.attributes.as<ReduceAttributes>().dims);
  if (plan.terms == 0) {
    for (int64_t i = 0; i < plan.outputs; ++i) store(i, 0.0);
  } else if (plan.outputs == 0) {
    return;
  } else if (plan.dims[plan.rank - 1].reduced) {
    TrailingSum{x, plan}.run(args.threads, store);
  } else {
    LeadingSum{x, plan}.run(args.threads, store);
  }
}

}  // namespace

void sum(const KernelArgs& args) { reduce(args, 1.0); }

void mean(const KernelArgs& args) {
  const int64_t outputs = args.outputs[0].numel();
  const int64_t terms = outputs == 0 ? 1 : args.inputs[0].numel() / outputs;
  // 1 / 0 makes the mean of nothing a NaN.
  reduce(args, 1.0 / static_cast<double>(terms));
}

}  // namespace faultline::cpu
