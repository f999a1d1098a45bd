#pragma once

#include <utility>

#include "core/launch.h"

namespace faultline {

// Where the element with number `n` in row-major order lies, in elements from the first.
inline int64_t offset_of(const Shape& shape, const Strides& strides, int64_t n) {
  int64_t offset = 0;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    offset += n % shape[d] * strides[d];
    n /= shape[d];
  }
  return offset;
}
inline int64_t offset_of(const TensorView& view, int64_t n) {
  return offset_of(view.shape, view.strides, n);
}

// The same memory, seen from `elements` further on.
inline TensorView moved(TensorView view, int64_t elements) {
  view.data += elements * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

// `count` indices from `begin` on along `dim`, as a view of the same memory.
inline TensorView slice_of(const TensorView& view, int dim, int64_t begin, int64_t count) {
  TensorView result = moved(view, begin * view.strides[dim]);
  result.shape[dim] = count;
  return result;
}

// A matrix with rows and columns exchanged, in the same memory.
inline TensorView transposed(const TensorView& matrix) {
  TensorView result = matrix;
  std::swap(result.shape[0], result.shape[1]);
  std::swap(result.strides[0], result.strides[1]);
  return result;
}

}  // namespace faultline
