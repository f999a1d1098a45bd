#include "tests/support/op_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/op.h"
#include "core/rng.h"

namespace faultline::test {

double Dense::at(const Dims& index) const {
  const int lead = index.rank() - shape.rank();
  int64_t place = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    place = place * shape[d] + (shape[d] == 1 ? 0 : index[d + lead]);
  }
  return values[static_cast<size_t>(place)];
}

Dense generate(const Shape& shape, const std::function<double(const Dims&)>& element) {
  Dense result{shape, {}};
  const int64_t count = numel(shape);
  for (int64_t n = 0; n < count; ++n) {
    Dims index = shape;
    int64_t rest = n;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    result.values.push_back(element(index));
  }
  return result;
}

Dense dense(const Tensor& tensor) { return {tensor.shape(), tensor.to_vector<double>()}; }

Dense pullback(const std::function<Dense(std::span<const Dense>)>& f, std::span<const Dense> inputs,
               size_t which, const Dense& dy) {
  constexpr double kStep = 1e-5;
  std::vector<Dense> moved(inputs.begin(), inputs.end());
  Dense result = inputs[which];
  for (size_t e = 0; e < result.values.size(); ++e) {
    double& x = moved[which].values[e];
    const double centre = x;
    x = centre + kStep;
    const Dense above = f(moved);
    x = centre - kStep;
    const Dense below = f(moved);
    x = centre;
    double slope = 0;
    for (size_t j = 0; j < dy.values.size(); ++j) {
      slope += dy.values[j] * (above.values[j] - below.values[j]);
    }
    result.values[e] = slope / (2 * kStep);
  }
  return result;
}

Input real(const Shape& shape, double low, double high) {
  return {.shape = shape, .low = low, .high = high};
}
Input nonzero(const Shape& shape, double low, double high) {
  return {.shape = shape, .low = low, .high = high, .both_signs = true};
}
Input ids(const Shape& shape, int64_t end, DType dtype, int64_t begin) {
  return {.shape = shape,
          .kind = Kind::ids,
          .low = static_cast<double>(begin),
          .high = static_cast<double>(end),
          .dtype = dtype};
}
Input booleans(const Shape& shape) { return {.shape = shape, .kind = Kind::booleans}; }
Input key() { return {.shape = {3}, .kind = Kind::key}; }

const char* name(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "transposed", "strided", "offset", "expanded"};
  return kNames[static_cast<int>(layout)];
}

namespace {

std::vector<double> values_of(const Input& input, const RandomSequence& random) {
  if (input.kind == Kind::key) return {1234567, 3, 2};
  std::vector<double> values;
  const int64_t count = numel(input.shape);
  for (int64_t n = 0; n < count; ++n) {
    const auto i = static_cast<uint64_t>(n);
    if (input.kind == Kind::booleans) {
      values.push_back(random.uniform(2 * i) < 0.5 ? 0 : 1);
      continue;
    }
    const double value = input.low + (input.high - input.low) * random.uniform(2 * i);
    const bool negated = input.both_signs && random.uniform(2 * i + 1) < 0.5;
    values.push_back(input.kind == Kind::ids ? std::floor(value) : negated ? -value : value);
  }
  return values;
}

DType dtype_of(const Input& input, DType floats) {
  switch (input.kind) {
    case Kind::ids:
      return input.dtype;
    case Kind::booleans:
      return DType::boolean;
    case Kind::key:
      return DType::i64;
    case Kind::real:
      break;
  }
  return floats;
}

// What must not be read: NaN, or an index that no tensor here has.
template <class T>
T poison() {
  if constexpr (std::is_same_v<T, bool>) {
    return true;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::numeric_limits<T>::max() / 2);
  } else {
    return convert<T>(std::numeric_limits<double>::quiet_NaN());
  }
}

struct Placement {
  Strides strides;
  int64_t offset = 0;
  int64_t length = 0;  // elements of memory
};

Placement place(const Shape& shape, Layout layout) {
  Placement result{contiguous_strides(shape), 0, std::max<int64_t>(numel(shape), 1)};
  if (shape.empty() && layout != Layout::offset) return result;
  const int rank = shape.rank();
  switch (layout) {
    case Layout::contiguous:
      break;
    case Layout::transposed:
      if (rank >= 2) {
        result.strides[rank - 1] = std::max<int64_t>(shape[rank - 2], 1);
        result.strides[rank - 2] = 1;
      }
      break;
    case Layout::strided:
      for (int64_t& stride : result.strides) stride *= 2;
      result.length *= 2;
      break;
    case Layout::offset:
      result.offset = 3;
      result.length += 5;
      break;
    case Layout::expanded:
      result.strides[0] = 0;
      break;
  }
  return result;
}

template <class T>
Tensor placed(const std::vector<double>& values, const Shape& shape, Layout layout) {
  const Placement where = place(shape, layout);
  // A vector<bool> has no elements to point at.
  const auto memory = std::make_unique<T[]>(static_cast<size_t>(where.length));
  std::fill_n(memory.get(), where.length, poison<T>());
  const auto write = [&](const Dims& index, double value) {
    int64_t at = where.offset;
    for (int d = 0; d < shape.rank(); ++d) at += index[d] * where.strides[d];
    memory[static_cast<size_t>(at)] = convert<T>(value);
  };
  const Dense source{shape, values};
  // Of elements that share a place, the one with the first index 0 is written last.
  for (const bool first : {false, true}) {
    generate(shape, [&](const Dims& index) {
      if (shape.empty() || (index[0] == 0) == first) write(index, source.at(index));
      return 0.0;
    });
  }
  const Tensor storage =
      tensor(std::span<const T>(memory.get(), static_cast<size_t>(where.length)), {where.length});
  return storage.alias(shape, where.strides, where.offset);
}

}  // namespace

Tensors inputs_of(const OpSample& sample, DType dtype, Layout layout) {
  Tensors result;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const Input& input = sample.inputs[i];
    const RandomSequence random(i, stream_of(sample.name().c_str()));
    const std::vector<double> values = values_of(input, random);
    // The key of dropout means something by its places, and a stride of 0 would change it.
    const bool repeats = layout == Layout::expanded && input.kind == Kind::key;
    result.push_back(with_type(dtype_of(input, dtype), [&]<class T>() {
      return placed<T>(values, input.shape, repeats ? Layout::contiguous : layout);
    }));
  }
  return result;
}

bool has_gradient(const OpSample& sample) {
  const auto row = std::find_if(all_ops().begin(), all_ops().end(),
                                [&](const OpDefinition& op) { return sample.op == op.name; });
  return row != all_ops().end() && row->differentiable != 0 && sample.floats_only &&
         std::any_of(sample.inputs.begin(), sample.inputs.end(),
                     [](const Input& input) { return input.kind == Kind::real; });
}

const std::vector<OpSample>& op_samples() {
  static const std::vector<OpSample> samples = [] {
    std::vector<OpSample> all;
    add_unary_samples(all);
    add_binary_samples(all);
    add_layout_samples(all);
    add_reduction_samples(all);
    add_network_samples(all);
    add_attention_samples(all);
    add_llama_samples(all);
    return all;
  }();
  return samples;
}

}  // namespace faultline::test
