#include "tests/support/rounding.h"

#include <algorithm>
#include <cmath>

#include "autograd/tape.h"
#include "core/context.h"
#include "core/rng.h"

namespace faultline::test {

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {0x1p-10, 0x1p-14};
    case DType::bf16:
      return {0x1p-7, 0x1p-126};
    case DType::f32:
      return {0x1p-23, 0x1p-126};
    default:
      return {0x1p-52, 0x1p-1022};
  }
}

std::vector<double> flattened(const Tensors& tensors) {
  std::vector<double> result;
  for (const Tensor& tensor : tensors) {
    const std::vector<double> values = tensor.to_vector<double>();
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

Tensors widened(const Tensors& tensors) {
  const NoGrad off;
  Tensors result;
  for (const Tensor& tensor : tensors) {
    result.push_back(is_floating(tensor.dtype()) ? cast(tensor, DType::f64) : tensor);
  }
  return result;
}

namespace {

Tensors moved(const Tensors& inputs, double epsilon, uint64_t pattern) {
  Tensors result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_floating(inputs[i].dtype())) {
      result.push_back(inputs[i]);
      continue;
    }
    const RandomSequence random(pattern, i);
    std::vector<double> values = inputs[i].to_vector<double>();
    for (size_t e = 0; e < values.size(); ++e) {
      values[e] *= 1 + (random.uniform(e) < 0.5 ? -epsilon : epsilon);
    }
    result.push_back(tensor(values, inputs[i].shape()));
  }
  return result;
}

}  // namespace

std::vector<double> rounding_bound(const Run& f, const Tensors& f64_inputs, DType dtype) {
  constexpr uint64_t kPatterns = 16;
  const auto [epsilon, smallest] = precision_of(dtype);
  const std::vector<double> centre = flattened(f(f64_inputs));
  std::vector<double> movement(centre.size(), 0);
  for (uint64_t pattern = 0; pattern < kPatterns; ++pattern) {
    const std::vector<double> other = flattened(f(moved(f64_inputs, epsilon, pattern)));
    for (size_t i = 0; i < centre.size(); ++i) {
      movement[i] = std::max(movement[i], std::abs(other[i] - centre[i]));
    }
  }
  double largest = 0;
  for (const double value : centre) largest = std::max(largest, std::abs(value));
  std::vector<double> bound;
  for (size_t i = 0; i < centre.size(); ++i) {
    bound.push_back(4 * (epsilon * std::abs(centre[i]) + movement[i]) + 2 * epsilon * largest +
                    smallest);
  }
  return bound;
}

Run gradient_of(const Run& run) {
  return [run](std::span<const Tensor> inputs) -> Tensors {
    const Scoped<bool> on(Context::current().gradients, true);
    Tensors all;
    Tensors leaves;
    for (const Tensor& input : inputs) {
      all.push_back(input.detach());
      if (!is_floating(input.dtype())) continue;
      set_requires_grad(all.back());
      leaves.push_back(all.back());
    }
    const Tensor output = run(all)[0];
    // Multiples of 1/8 up to 1: exact in bf16.
    const RandomSequence random(11, stream_of("cotangent"));
    std::vector<double> cotangent;
    for (int64_t j = 0; j < output.numel(); ++j) {
      const auto index = static_cast<uint64_t>(j);
      const double size = static_cast<double>(1 + random.below(8, 2 * index)) / 8;
      cotangent.push_back(random.below(2, 2 * index + 1) == 0 ? size : -size);
    }
    const Tensor seed = cast(tensor(cotangent, output.shape()), output.dtype());
    return gradients(output, leaves, seed);
  };
}

}  // namespace faultline::test
