#pragma once

#include <cstdint>

#include "core/launch.h"
#include "kernels/cpu/blocks.h"

namespace faultline::cpu {

// Labels or ids: an i32 or i64 view of any shape and layout, read in row-major order.
class Indices {
 public:
  explicit Indices(const TensorView& view)
      : layout_(view, view.shape), narrow_(view.dtype == DType::i32) {
    invariant(view.dtype == DType::i32 || view.dtype == DType::i64,
              "kernel: indices are i32 or i64, got {}", name(view.dtype));
  }

  int64_t operator[](int64_t i) const {
    const std::byte* address = nullptr;
    if (layout_.rank == 1) {
      address = layout_.data + i * layout_.strides[0] * (narrow_ ? 4 : 8);
    } else {
      layout_.each_run(i, 1, [&](const std::byte* at, int64_t, int64_t) { address = at; });
    }
    return narrow_ ? *reinterpret_cast<const int32_t*>(address)
                   : *reinterpret_cast<const int64_t*>(address);
  }

 private:
  Layout layout_;
  bool narrow_;
};

}  // namespace faultline::cpu
