#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "core/launch.h"
#include "kernels/layout.h"

namespace faultline::testing {

// One kernel call and the memory behind it, without tensors or a Context.
class KernelCall {
 public:
  // The next input: these values in row-major order.
  template <class T>
  KernelCall& in(const std::vector<T>& values, const Shape& shape) {
    args_.inputs[args_.input_count++] = view_of(values, shape);
    return *this;
  }
  KernelCall& in(const TensorView& view) {
    args_.inputs[args_.input_count++] = view;
    return *this;
  }
  KernelCall& absent() {
    ++args_.input_count;
    return *this;
  }
  // The next output, filled with 0xff bytes: NaN in floating types.
  template <class T>
  KernelCall& out(const Shape& shape) {
    args_.outputs[args_.output_count++] = fresh(dtype_of<T>(), shape);
    return *this;
  }
  KernelCall& out(const TensorView& view) {
    args_.outputs[args_.output_count++] = view;
    return *this;
  }
  KernelCall& with(const Attributes& attributes) {
    args_.attributes = attributes;
    return *this;
  }
  KernelCall& threads(int count) {
    args_.threads = count;
    return *this;
  }

  // Runs the kernel and returns output 0 in row-major order.
  template <class T>
  std::vector<T> run(Kernel kernel) {
    kernel(args_);
    return result<T>(0);
  }
  template <class T>
  std::vector<T> result(int i) const {
    std::vector<T> values;
    const TensorView& view = args_.outputs[i];
    for (int64_t n = 0; n < view.numel(); ++n) values.push_back(view.as<T>()[offset_of(view, n)]);
    return values;
  }

  // Memory that lives as long as this call.
  TensorView fresh(DType dtype, const Shape& shape) {
    TensorView view;
    auto& bytes = memory_.emplace_back(static_cast<size_t>(numel(shape)) * size_of(dtype) + 16,
                                       std::byte{0xff});
    view.data = bytes.data();
    view.dtype = dtype;
    view.shape = shape;
    view.strides = contiguous_strides(shape);
    return view;
  }
  template <class T>
  TensorView view_of(const std::vector<T>& values, const Shape& shape) {
    const TensorView view = fresh(dtype_of<T>(), shape);
    for (size_t i = 0; i < values.size(); ++i) view.as<T>()[i] = values[i];
    return view;
  }

 private:
  std::deque<std::vector<std::byte>> memory_;
  KernelArgs args_;
};

}  // namespace faultline::testing
