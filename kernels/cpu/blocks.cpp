#include "kernels/cpu/blocks.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/spans.h"

namespace faultline::cpu {
namespace {

// Gathers a run of 16-bit elements first, so that they convert as a vector.
template <class T>
void widen_run(const T* x, int64_t stride, float* y, int64_t n,
               void (*widen)(const T*, float*, int64_t)) {
  if (stride == 1) return widen(x, y, n);
  T gathered[256];
  for (int64_t done = 0; done < n; done += 256) {
    const int64_t count = std::min<int64_t>(256, n - done);
    for (int64_t i = 0; i < count; ++i) gathered[i] = x[(done + i) * stride];
    widen(gathered, y + done, count);
  }
}

template <class T>
void narrow_run(const float* x, T* y, int64_t stride, int64_t n,
                void (*narrow)(const float*, T*, int64_t)) {
  if (stride == 1) return narrow(x, y, n);
  T converted[256];
  for (int64_t done = 0; done < n; done += 256) {
    const int64_t count = std::min<int64_t>(256, n - done);
    narrow(x + done, converted, count);
    for (int64_t i = 0; i < count; ++i) y[(done + i) * stride] = converted[i];
  }
}

}  // namespace

void read_run(const std::byte* address, DType dtype, int64_t stride, float* y, int64_t n) {
  if (dtype == DType::f16) {
    widen_run(reinterpret_cast<const float16*>(address), stride, y, n,
              arithmetic_spans().widen_f16);
  } else if (dtype == DType::bf16) {
    widen_run(reinterpret_cast<const bfloat16*>(address), stride, y, n,
              arithmetic_spans().widen_bf16);
  } else {
    const auto* x = reinterpret_cast<const float*>(address);
    if (stride == 1) {
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = x[i * stride];
    }
  }
}

void write_run(const float* x, std::byte* address, DType dtype, int64_t stride, int64_t n) {
  if (dtype == DType::f16) {
    narrow_run(x, reinterpret_cast<float16*>(address), stride, n, arithmetic_spans().narrow_f16);
  } else if (dtype == DType::bf16) {
    narrow_run(x, reinterpret_cast<bfloat16*>(address), stride, n, arithmetic_spans().narrow_bf16);
  } else {
    auto* y = reinterpret_cast<float*>(address);
    for (int64_t i = 0; i < n; ++i) y[i * stride] = x[i];
  }
}

Layout::Layout(const TensorView& view, const Shape& shape) : data(view.data), dtype(view.dtype) {
  const Strides full = broadcast_strides(view.shape, view.strides, shape);
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    if (rank > 0 && strides[rank - 1] == shape[d] * full[d]) {
      sizes[rank - 1] *= shape[d];
      strides[rank - 1] = full[d];
    } else {
      sizes[rank] = shape[d];
      strides[rank++] = full[d];
    }
  }
  if (rank == 0) {
    sizes[0] = 1;
    strides[0] = 1;
    rank = 1;
  }
}

float* Buffer::get(int64_t n) {
  if (n > capacity_) {
    large_.reset(new float[static_cast<size_t>(n)]);
    capacity_ = n;
  }
  return large_ ? large_.get() : block_;
}

const float* Source::gather(int64_t begin, int64_t n) {
  const int last = layout_.rank - 1;
  const bool in_one_run =
      layout_.rank == 1 || (n > 0 && begin % layout_.sizes[last] + n <= layout_.sizes[last]);
  if (layout_.dtype == DType::f32 && layout_.strides[last] == 1 && in_one_run) {
    const float* found = nullptr;
    layout_.each_run(begin, n, [&](const std::byte* address, int64_t, int64_t) {
      found = reinterpret_cast<const float*>(address);
    });
    return found;
  }
  float* const buffer = buffer_.get(n);
  float* to = buffer;
  layout_.each_run(begin, n, [&](const std::byte* address, int64_t stride, int64_t count) {
    read_run(address, layout_.dtype, stride, to, count);
    to += count;
  });
  return buffer;
}

void Sink::scatter(int64_t begin, int64_t n) {
  const float* from = buffer_.get(n);
  layout_.each_run(begin, n, [&](std::byte* address, int64_t stride, int64_t count) {
    write_run(from, address, layout_.dtype, stride, count);
    from += count;
  });
}

RowCount rows_of(const Shape& shape) {
  if (shape.empty()) return {1, 1};
  int64_t rows = 1;
  for (int d = 0; d + 1 < shape.rank(); ++d) rows *= shape[d];
  return {rows, shape[-1]};
}

}  // namespace faultline::cpu
