// Copies between layouts and dtypes: contiguous and cast. They take every dtype.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/spans.h"
#include "kernels/kernels.h"

namespace faultline::cpu {
namespace {

// The dimensions of a copy, those that follow each other on both sides merged.
struct CopyPlan {
  int rank = 0;
  int64_t sizes[kMaxRank];
  int64_t from[kMaxRank];  // strides in elements
  int64_t to[kMaxRank];
};

CopyPlan plan_copy(const TensorView& x, const TensorView& y) {
  const Strides from = broadcast_strides(x.shape, x.strides, y.shape);
  CopyPlan plan;
  for (int d = 0; d < y.shape.rank(); ++d) {
    const int64_t size = y.shape[d];
    if (size == 1) continue;
    const int last = plan.rank - 1;
    if (plan.rank > 0 && plan.from[last] == size * from[d] &&
        plan.to[last] == size * y.strides[d]) {
      plan.sizes[last] *= size;
      plan.from[last] = from[d];
      plan.to[last] = y.strides[d];
    } else {
      plan.sizes[plan.rank] = size;
      plan.from[plan.rank] = from[d];
      plan.to[plan.rank++] = y.strides[d];
    }
  }
  if (plan.rank == 0) plan = {1, {1}, {1}, {1}};
  return plan;
}

// 16 bytes that are only moved.
struct Sixteen {
  uint64_t halves[2];
};

// A tile of this many rows and columns stays in the first-level cache, also for 8-byte elements.
constexpr int64_t kTile = 32;

template <class T>
void copy_tile(const T* x, int64_t x_row, int64_t x_column, T* y, int64_t y_row, int64_t y_column,
               int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      y[i * y_row + j * y_column] = x[i * x_row + j * x_column];
    }
  }
}

// The offset on both sides of index `i` over the dimensions of `plan` other than `a` and `b`.
struct Place {
  int64_t from = 0;
  int64_t to = 0;
};
Place place_of(const CopyPlan& plan, int64_t i, int a, int b) {
  Place place;
  for (int d = plan.rank - 1; d >= 0; --d) {
    if (d == a || d == b) continue;
    const int64_t index = i % plan.sizes[d];
    i /= plan.sizes[d];
    place.from += index * plan.from[d];
    place.to += index * plan.to[d];
  }
  return place;
}

// The dimension that the input runs along, when it is not the output's last one.
int crossing_dimension(const CopyPlan& plan) {
  const int last = plan.rank - 1;
  if (plan.from[last] == 1) return -1;
  for (int d = last - 1; d >= 0; --d) {
    if (plan.from[d] == 1) return d;
  }
  return -1;
}

// Input and output run along different dimensions: square tiles keep both sides in the cache.
template <class T>
void copy_crossing(const CopyPlan& plan, int cross, const T* x, T* y, int64_t count, int threads) {
  const int last = plan.rank - 1;
  const int64_t rows = plan.sizes[cross];
  const int64_t columns = plan.sizes[last];
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  const int64_t planes = count / (rows * columns);
  for_pieces(planes * row_tiles, 1, threads_for(count, threads), [&](int64_t item, int64_t) {
    const Place place = place_of(plan, item / row_tiles, cross, last);
    const int64_t row = item % row_tiles * kTile;
    for (int64_t column = 0; column < columns; column += kTile) {
      copy_tile(x + place.from + row * plan.from[cross] + column * plan.from[last],
                plan.from[cross], plan.from[last],
                y + place.to + row * plan.to[cross] + column * plan.to[last], plan.to[cross],
                plan.to[last], std::min(kTile, rows - row), std::min(kTile, columns - column));
    }
  });
}

// Walks over the dimensions of `plan` before the last one, in row-major order from number `i` on.
class Walk {
 public:
  Walk(const CopyPlan& plan, int64_t i) : plan_(plan) {
    for (int d = plan.rank - 2; d >= 0; --d) {
      index_[d] = i % plan.sizes[d];
      i /= plan.sizes[d];
      place_.from += index_[d] * plan.from[d];
      place_.to += index_[d] * plan.to[d];
    }
  }
  const Place& place() const { return place_; }
  void next() {
    for (int d = plan_.rank - 2; d >= 0; --d) {
      place_.from += plan_.from[d];
      place_.to += plan_.to[d];
      if (++index_[d] < plan_.sizes[d]) return;
      place_.from -= plan_.sizes[d] * plan_.from[d];
      place_.to -= plan_.sizes[d] * plan_.to[d];
      index_[d] = 0;
    }
  }

 private:
  const CopyPlan& plan_;
  int64_t index_[kMaxRank] = {};
  Place place_;
};

// Calls body(from, to, n) with offsets for runs along the last dimension, on several threads.
template <class Body>
void for_runs(const CopyPlan& plan, int64_t count, int threads, const Body& body) {
  const int last = plan.rank - 1;
  const int64_t length = plan.sizes[last];
  const int64_t cuts = (length + kPiece - 1) / kPiece;  // long runs are shared between threads
  const int64_t runs = count / length * cuts;
  const int64_t piece = std::max<int64_t>(1, kPiece / std::min(length, kPiece));
  for_pieces(runs, piece, threads_for(count, threads), [&](int64_t begin, int64_t end) {
    Walk walk(plan, begin / cuts);
    int64_t cut = begin % cuts;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = cut * kPiece;
      body(walk.place().from + first * plan.from[last], walk.place().to + first * plan.to[last],
           std::min(kPiece, length - first));
      if (++cut < cuts) continue;
      cut = 0;
      walk.next();
    }
  });
}

template <class T>
void copy_elements(const CopyPlan& plan, const std::byte* from, std::byte* to, int64_t count,
                   int threads) {
  const auto* x = reinterpret_cast<const T*>(from);
  auto* y = reinterpret_cast<T*>(to);
  const int cross = crossing_dimension(plan);
  if (cross >= 0) return copy_crossing(plan, cross, x, y, count, threads);
  const int64_t x_step = plan.from[plan.rank - 1];
  const int64_t y_step = plan.to[plan.rank - 1];
  for_runs(plan, count, threads, [=](int64_t i, int64_t j, int64_t n) {
    if (x_step == 1 && y_step == 1) {
      std::memcpy(y + j, x + i, static_cast<size_t>(n) * sizeof(T));
    } else {
      copy_tile(x + i, 0, x_step, y + j, 0, y_step, 1, n);
    }
  });
}

void copy_same_dtype(const TensorView& x, const TensorView& y, int64_t count, int threads) {
  const CopyPlan plan = plan_copy(x, y);
  switch (size_of(x.dtype)) {
    case 1:
      return copy_elements<uint8_t>(plan, x.data, y.data, count, threads);
    case 2:
      return copy_elements<uint16_t>(plan, x.data, y.data, count, threads);
    case 4:
      return copy_elements<uint32_t>(plan, x.data, y.data, count, threads);
    case 8:
      return copy_elements<uint64_t>(plan, x.data, y.data, count, threads);
    default:
      return copy_elements<Sixteen>(plan, x.data, y.data, count, threads);
  }
}

bool converts_as_vector(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void convert_as_vector(const TensorView& x, const TensorView& y, int64_t count, int threads) {
  const Layout from(x, y.shape);
  const Layout to(y, y.shape);
  for_pieces(count, kPiece, threads_for(count, threads), [&](int64_t begin, int64_t end) {
    Source source(from);
    Sink sink(to);
    for (; begin < end; begin += kBlock) {
      const int64_t n = std::min(kBlock, end - begin);
      const float* block = source.read(begin, n);
      float* slot = sink.slot(begin, n);
      if (slot != block) std::memcpy(slot, block, static_cast<size_t>(n) * sizeof(float));
      sink.commit(begin, n);
    }
  });
}

template <class From, class To>
void convert_run(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                 int64_t n) {
  const auto* x = reinterpret_cast<const From*>(from);
  auto* y = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) y[i * to_step] = convert<To>(x[i * from_step]);
}

void convert_one_by_one(const TensorView& x, const TensorView& y, int64_t count, int threads) {
  const CopyPlan plan = plan_copy(x, y);
  const auto run = with_type(x.dtype, [&]<class From>() {
    return with_type(y.dtype, []<class To>() { return &convert_run<From, To>; });
  });
  const auto x_width = static_cast<int64_t>(size_of(x.dtype));
  const auto y_width = static_cast<int64_t>(size_of(y.dtype));
  const int last = plan.rank - 1;
  for_runs(plan, count, threads, [&](int64_t i, int64_t j, int64_t n) {
    run(x.data + i * x_width, plan.from[last], y.data + j * y_width, plan.to[last], n);
  });
}

}  // namespace

void contiguous(const KernelArgs& args) { cast(args); }

void cast(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const int64_t count = y.numel();
  if (count == 0) return;
  if (x.dtype == y.dtype) {
    copy_same_dtype(x, y, count, args.threads);
  } else if (converts_as_vector(x.dtype) && converts_as_vector(y.dtype)) {
    convert_as_vector(x, y, count, args.threads);
  } else {
    convert_one_by_one(x, y, count, args.threads);
  }
}

}  // namespace faultline::cpu
