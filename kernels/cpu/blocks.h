#pragma once

#include <cstdint>
#include <memory>

#include "core/launch.h"
#include "core/threads.h"

namespace faultline::cpu {

// Elementwise work goes through blocks of this many elements, so that what must be converted or
// gathered stays in the first-level cache.
constexpr int64_t kBlock = 1024;
// The unit that a thread takes.
constexpr int64_t kPiece = 16 * kBlock;

// The threads for work on this many elements: one where waking others takes longer than they save.
inline int threads_for(int64_t elements, int threads) {
  return elements < 4 * kPiece ? 1 : threads;
}

// Copies n elements of f32, f16 or bf16, `stride` elements apart, to or from contiguous f32.
void read_run(const std::byte* address, DType dtype, int64_t stride, float* y, int64_t n);
void write_run(const float* x, std::byte* address, DType dtype, int64_t stride, int64_t n);

// A view read in row-major order of a shape that it broadcasts to, dimensions that follow each
// other in memory merged into one.
struct Layout {
  Layout(const TensorView& view, const Shape& shape);

  std::byte* data;
  DType dtype;
  int rank = 0;  // at least 1 after construction
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];  // in elements

  bool is_dense() const { return rank == 1 && (strides[0] == 1 || sizes[0] <= 1); }
  bool is_dense_f32() const { return dtype == DType::f32 && is_dense(); }
  // Calls body(address, stride, n) for runs of elements along the last dimension that together
  // make up the elements [begin, begin + n).
  template <class Body>
  void each_run(int64_t begin, int64_t n, const Body& body) const;
};

// Floats for at most `capacity` elements, on the stack for a block and on the heap beyond it.
class Buffer {
 public:
  float* get(int64_t n);

 private:
  alignas(64) float block_[kBlock];
  std::unique_ptr<float[]> large_;
  int64_t capacity_ = kBlock;
};

// Reads an f32, f16 or bf16 view as contiguous f32.
class Source {
 public:
  explicit Source(const Layout& layout) : layout_(layout), direct_(layout.is_dense_f32()) {}
  // Elements [begin, begin + n): the tensor's own memory where it is such, else a copy that lives
  // until the next call.
  const float* read(int64_t begin, int64_t n) {
    return direct_ ? reinterpret_cast<const float*>(layout_.data) + begin : gather(begin, n);
  }

 private:
  const float* gather(int64_t begin, int64_t n);

  const Layout& layout_;
  bool direct_;
  Buffer buffer_;
};

// Writes contiguous f32 to an f32, f16 or bf16 view.
class Sink {
 public:
  explicit Sink(const Layout& layout) : layout_(layout), direct_(layout.is_dense_f32()) {}
  // Where to put elements [begin, begin + n), before commit(begin, n) brings them to the tensor.
  float* slot(int64_t begin, int64_t n) {
    return direct_ ? reinterpret_cast<float*>(layout_.data) + begin : buffer_.get(n);
  }
  void commit(int64_t begin, int64_t n) {
    if (!direct_) scatter(begin, n);
  }

 private:
  void scatter(int64_t begin, int64_t n);

  const Layout& layout_;
  bool direct_;
  Buffer buffer_;
};

// Runs body(begin, end) over [0, count) cut into pieces of `piece`, whose borders do not depend on
// `threads`.
template <class Body>
void for_pieces(int64_t count, int64_t piece, int threads, const Body& body) {
  parallel_for((count + piece - 1) / piece, threads, [&](int64_t i) {
    const int64_t begin = i * piece;
    body(begin, begin + piece < count ? begin + piece : count);
  });
}

// The same over rows of `columns` elements, in pieces of about kPiece elements.
template <class Body>
void for_rows(int64_t rows, int64_t columns, int threads, const Body& body) {
  const int64_t piece = columns >= kPiece ? 1 : kPiece / (columns > 0 ? columns : 1);
  for_pieces(rows, piece, threads_for(rows * columns, threads), body);
}

// The elements of `view` as rows of its last dimension; a scalar is one row of one.
struct RowCount {
  int64_t rows;
  int64_t columns;
};
RowCount rows_of(const Shape& shape);

template <class Body>
void Layout::each_run(int64_t begin, int64_t n, const Body& body) const {
  int64_t index[kMaxRank] = {};
  int64_t rest = begin;
  int64_t offset = 0;
  for (int d = rank - 1; d >= 0; --d) {
    index[d] = sizes[d] > 0 ? rest % sizes[d] : 0;
    rest = sizes[d] > 0 ? rest / sizes[d] : 0;
    offset += index[d] * strides[d];
  }
  const auto width = static_cast<int64_t>(size_of(dtype));
  const int last = rank - 1;
  while (n > 0) {
    const int64_t left = sizes[last] - index[last];
    const int64_t run = n < left ? n : left;
    body(data + offset * width, strides[last], run);
    n -= run;
    offset -= index[last] * strides[last];
    index[last] = 0;
    for (int d = last - 1; d >= 0 && n > 0; --d) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= sizes[d] * strides[d];
      index[d] = 0;
    }
  }
}

}  // namespace faultline::cpu
