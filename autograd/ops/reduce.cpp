#include "autograd/functional.h"
#include "autograd/rules.h"

// Reductions. The kernels keep reduced dimensions with size 1; `finish` drops them.
namespace faultline {
namespace {

uint32_t dim_bits(const Tensor& x, const std::vector<int64_t>& dims, const char* op) {
  if (dims.empty()) return (1U << x.rank()) - 1;
  uint32_t bits = 0;
  for (const int64_t dim : dims) {
    const uint32_t bit = 1U << normalize_dim(dim, x.rank(), op);
    require((bits & bit) == 0, "{}: dimension {} is named twice", op, dim);
    bits |= bit;
  }
  return bits;
}

Shape reduced(const Shape& shape, uint32_t bits) {
  Shape result = shape;
  for (int d = 0; d < shape.rank(); ++d) {
    if ((bits >> d & 1) != 0) result[d] = 1;
  }
  return result;
}

void reduce_shape(std::span<const Tensor> inputs, const Attributes& attributes,
                  std::span<OutputSpec> outputs) {
  const uint32_t bits = attributes.as<ReduceAttributes>().dims;
  outputs[0] = {reduced(inputs[0].shape(), bits), inputs[0].dtype()};
}

int64_t reduced_count(const Shape& shape, uint32_t bits) {
  int64_t count = 1;
  for (int d = 0; d < shape.rank(); ++d) count *= (bits >> d & 1) != 0 ? shape[d] : 1;
  return count;
}

Tensor reduce(Op op, const Tensor& x, const std::vector<int64_t>& dims, KeepDim keep, Site site) {
  const uint32_t bits = dim_bits(x, dims, definition(op).name);
  Tensor result = apply(op, {x}, ReduceAttributes{bits}, site);
  if (keep == KeepDim::yes) return result;
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) {
    if ((bits >> d & 1) == 0) shape.push_back(x.shape()[d]);
  }
  return reshape(result, shape, site);
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int64_t>& dims, KeepDim keep, Site site) {
  return reduce(Op::sum, x, dims, keep, site);
}
// Integers and bools are counted in i64: a u8 would wrap around, and a bool would say "any".
RULES(sum) = {.shape =
                  [](std::span<const Tensor> inputs, const Attributes& attributes,
                     std::span<OutputSpec> outputs) {
                    reduce_shape(inputs, attributes, outputs);
                    if (!is_floating(inputs[0].dtype())) outputs[0].dtype = DType::i64;
                  },
              .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                return {expand(grads[0], saved.input_shape(0))};
              }};

Tensor mean(const Tensor& x, const std::vector<int64_t>& dims, KeepDim keep, Site site) {
  require_floats(x, "mean");
  return reduce(Op::mean, x, dims, keep, site);
}
RULES(mean) = {.shape = reduce_shape,
               .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                 const uint32_t bits = saved.attributes().as<ReduceAttributes>().dims;
                 const Shape& shape = saved.input_shape(0);
                 const double scale = 1.0 / static_cast<double>(reduced_count(shape, bits));
                 return {expand(affine(grads[0], scale, 0), shape)};
               }};

Tensor amax(const Tensor& x, const std::vector<int64_t>& dims, KeepDim keep, Site site) {
  const uint32_t bits = dim_bits(x, dims, "amax");
  require(reduced_count(x.shape(), bits) > 0, "amax: {} has no elements to choose from", x);
  return reduce(Op::amax, x, dims, keep, site);
}
RULES(amax) = {.shape = reduce_shape,
               .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                 const Tensor& x = saved.input(0);
                 const uint32_t bits = saved.attributes().as<ReduceAttributes>().dims;
                 std::vector<int64_t> dims;
                 for (int d = 0; d < x.rank(); ++d) {
                   if ((bits >> d & 1) != 0) dims.push_back(d);
                 }
                 const Tensor hits = cast(equal(x, saved.output(0)), x.dtype());
                 if (dims.empty()) return {grads[0]};
                 return {hits * (grads[0] / sum(hits, dims, KeepDim::yes))};
               }};

Tensor argmax(const Tensor& x, int64_t dim, Site site) {
  const int d = normalize_dim(dim, x.rank(), "argmax");
  require(x.shape()[d] > 0, "argmax: dimension {} of {} is empty", d, x);
  return reshape(apply(Op::argmax, {x}, DimAttributes{d}, site), x.shape().without(d), site);
}
RULES(argmax) = {.shape = [](std::span<const Tensor> inputs, const Attributes& attributes,
                             std::span<OutputSpec> outputs) {
  outputs[0] = {inputs[0].shape(), DType::i64};
  outputs[0].shape[static_cast<int>(attributes.as<DimAttributes>().dim)] = 1;
}};

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int lead = x.rank() - shape.rank();
  std::vector<int64_t> dims;
  for (int d = 0; d < x.rank(); ++d) {
    if (d < lead || (shape[d - lead] == 1 && x.shape()[d] != 1)) dims.push_back(d);
  }
  return dims.empty() ? reshape(x, shape) : reshape(sum(x, dims, KeepDim::yes), shape);
}

}  // namespace faultline
