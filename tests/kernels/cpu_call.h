#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "core/launch.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace faultline::test {

// One direct call of a kernel over tensors.
class CpuCall {
 public:
  // The next input; an undefined tensor is an absent one.
  CpuCall& in(const Tensor& tensor) {
    inputs_.push_back(tensor);
    if (tensor.defined()) args_.inputs[args_.input_count] = tensor.view();
    ++args_.input_count;
    return *this;
  }
  CpuCall& out(const Tensor& tensor) {
    outputs_.push_back(tensor);
    if (tensor.defined()) args_.outputs[args_.output_count] = tensor.view();
    ++args_.output_count;
    return *this;
  }
  CpuCall& with(const Attributes& attributes) {
    args_.attributes = attributes;
    return *this;
  }
  CpuCall& threads(int count) {
    args_.threads = count;
    return *this;
  }
  // Runs the kernel and returns its first output.
  Tensor run(Kernel kernel) {
    kernel(args_);
    return outputs_[0];
  }

 private:
  KernelArgs args_;
  std::vector<Tensor> inputs_, outputs_;
};

// Memory that a kernel must overwrite: every byte 0xff, NaN in floating types.
inline Tensor unwritten(const Shape& shape, DType dtype = DType::f32) {
  Tensor result = empty(shape, dtype);
  if (result.numel() > 0) {
    std::memset(result.view().data, 0xff, static_cast<size_t>(result.numel()) * size_of(dtype));
  }
  return result;
}

// Normal variates times `scale`, the same for the same stream.
inline std::vector<float> normal_values(int64_t n, uint64_t stream, double scale = 1) {
  const RandomSequence sequence(20240917, stream);
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<float>(scale * sequence.normal(static_cast<uint64_t>(i))));
  }
  return values;
}
inline Tensor normal_tensor(const Shape& shape, uint64_t stream, double scale = 1) {
  return tensor(normal_values(numel(shape), stream, scale), shape);
}

// The same values in another floating dtype, rounded once.
inline Tensor in_dtype(const Tensor& x, DType dtype) {
  Tensor result = empty(x.shape(), dtype);
  const auto values = x.to_vector<float>();
  with_type(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      reinterpret_cast<T*>(result.view().data)[i] = convert<T>(values[i]);
    }
  });
  return result;
}

// The same elements (f32), in memory in which dimensions `a` and `b` have changed places.
inline Tensor crossed(const Tensor& x, int a, int b) {
  Shape shape = x.shape();
  std::swap(shape[a], shape[b]);
  Strides strides = contiguous_strides(shape);
  std::swap(strides[a], strides[b]);
  std::swap(shape[a], shape[b]);
  Tensor result = unwritten({x.numel()}, x.dtype()).alias(shape, strides);
  const auto values = x.to_vector<float>();
  auto* to = reinterpret_cast<float*>(result.view().data);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      offset += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    to[offset] = values[static_cast<size_t>(i)];
  }
  return result;
}

constexpr double kEpsilon = 0x1p-24;  // the most that rounding to f32 changes a number, relatively

}  // namespace faultline::test
