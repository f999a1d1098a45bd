#include <algorithm>
#include <array>
#include <numeric>

#include "autograd/functional.h"
#include "autograd/rules.h"

// Ops that move no element (views), and those that only move elements.
namespace faultline {
namespace {

// The attributes of a view are the new layout itself.
struct LayoutAttributes {
  Dims dims;
};

// Strides with which `x` can be seen as `shape`, or nothing. A group of neighbouring dimensions may
// be merged or cut where its strides are those of contiguous memory.
std::optional<Strides> view_strides(const TensorView& x, const Shape& shape) {
  Strides result = contiguous_strides(shape);
  if (x.numel() == 0) return result;
  int to = shape.rank() - 1;
  for (int from = x.shape.rank() - 1; from >= 0;) {
    const int64_t base = x.strides[from];
    int64_t group = x.shape[from];
    int64_t reach = x.strides[from] * x.shape[from];
    --from;
    while (from >= 0 && (x.shape[from] == 1 || x.strides[from] == reach)) {
      group *= x.shape[from];
      reach *= x.shape[from];
      --from;
    }
    int64_t covered = 1;
    while (to >= 0 && (covered < group || shape[to] == 1)) {
      result[to] = base * covered;
      covered *= shape[to];
      --to;
    }
    if (covered != group) return std::nullopt;
  }
  return result;
}

Shape resolve(const Tensor& x, Shape shape, const char* op) {
  int unknown = -1;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] != -1) continue;
    require(unknown < 0, "{}: at most one size may be -1, got {}", op, shape);
    unknown = d;
  }
  if (unknown >= 0) {
    Shape known = shape;
    known[unknown] = 1;
    const int64_t count = numel(known);
    require(count != 0, "{}: in {} the size -1 of {} could be anything", op, shape, x);
    shape[unknown] = x.numel() / count;
  }
  require(numel(shape) == x.numel(), "{}: {} has {} elements and cannot become {}", op, x,
          x.numel(), shape);
  return shape;
}

void layout_shape(std::span<const Tensor> inputs, const Attributes& attributes,
                  std::span<OutputSpec> outputs) {
  outputs[0] = {attributes.as<LayoutAttributes>().dims, inputs[0].dtype()};
}

Dims inverse(const Dims& order) {
  Dims result = order;
  for (int d = 0; d < order.rank(); ++d) result[static_cast<int>(order[d])] = d;
  return result;
}

}  // namespace

Tensor view(const Tensor& x, const Shape& shape, Site site) {
  return apply(Op::view, {x}, LayoutAttributes{resolve(x, shape, "view")}, site);
}

Tensor reshape(const Tensor& x, const Shape& shape, Site site) {
  const Shape target = resolve(x, shape, "reshape");
  if (target == x.shape()) return x;
  return view(view_strides(x.view(), target) ? x : contiguous(x, site), target, site);
}

RULES(view) = {
    .shape = layout_shape,
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      return {reshape(grads[0], saved.input_shape(0))};
    },
    .view =
        [](const Tensor& x, const Attributes&, const OutputSpec& spec, int) {
          const auto strides = view_strides(x.view(), spec.shape);
          require(strides.has_value(),
                  "view: {} with strides {} cannot be seen as {} without a copy; use reshape", x,
                  x.strides(), spec.shape);
          return x.alias(spec.shape, *strides);
        }};

Tensor permute(const Tensor& x, const Dims& order, Site site) {
  require(order.rank() == x.rank(), "permute: order {} does not fit {}", order, x);
  uint32_t seen = 0;
  for (const int64_t d : order) {
    require(d >= 0 && d < x.rank() && (seen >> d & 1) == 0,
            "permute: order {} must name each of {} dimensions once", order, x.rank());
    seen |= 1U << d;
  }
  return apply(Op::permute, {x}, LayoutAttributes{order}, site);
}

Tensor transpose(const Tensor& x, int64_t dim_a, int64_t dim_b, Site site) {
  Dims order = x.shape();
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[normalize_dim(dim_a, x.rank(), "transpose")],
            order[normalize_dim(dim_b, x.rank(), "transpose")]);
  return permute(x, order, site);
}

RULES(permute) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          const Dims order = attributes.as<LayoutAttributes>().dims;
          Shape shape = order;
          for (int d = 0; d < order.rank(); ++d) {
            shape[d] = inputs[0].shape()[static_cast<int>(order[d])];
          }
          outputs[0] = {shape, inputs[0].dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      return {permute(grads[0], inverse(saved.attributes().as<LayoutAttributes>().dims))};
    },
    .view =
        [](const Tensor& x, const Attributes& attributes, const OutputSpec& spec, int) {
          const Dims order = attributes.as<LayoutAttributes>().dims;
          Strides strides = order;
          for (int d = 0; d < order.rank(); ++d)
            strides[d] = x.strides()[static_cast<int>(order[d])];
          return x.alias(spec.shape, strides);
        }};

Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, Site site) {
  const int d = normalize_dim(dim, x.rank(), "slice");
  const int64_t size = x.shape()[d];
  const int64_t from = begin < 0 ? begin + size : begin;
  const int64_t to = end < 0 ? end + size : end;
  require(0 <= from && from <= to && to <= size,
          "slice: [{}, {}) is not inside dimension {} of {} (size {})", begin, end, d, x, size);
  return apply(Op::slice, {x}, SliceAttributes{d, from, to - from}, site);
}

RULES(slice) = {.shape =
                    [](std::span<const Tensor> inputs, const Attributes& attributes,
                       std::span<OutputSpec> outputs) {
                      const auto at = attributes.as<SliceAttributes>();
                      outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
                      outputs[0].shape[static_cast<int>(at.dim)] = at.length;
                    },
                .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                  auto at = saved.attributes().as<SliceAttributes>();
                  at.full_size = saved.input_shape(0)[static_cast<int>(at.dim)];
                  return {apply(Op::slice_backward, {grads[0]}, at)};
                },
                .view =
                    [](const Tensor& x, const Attributes& attributes, const OutputSpec& spec, int) {
                      const auto at = attributes.as<SliceAttributes>();
                      return x.alias(spec.shape, x.strides(),
                                     at.begin * x.strides()[static_cast<int>(at.dim)]);
                    }};

RULES(slice_backward) = {.shape = [](std::span<const Tensor> inputs, const Attributes& attributes,
                                     std::span<OutputSpec> outputs) {
  const auto at = attributes.as<SliceAttributes>();
  const bool fits = 0 <= at.dim && at.dim < inputs[0].rank() &&
                    inputs[0].shape()[static_cast<int>(at.dim)] == at.length && at.begin >= 0 &&
                    at.begin + at.length <= at.full_size;
  require(fits, "slice_backward: {} is not [{}, {}) of dimension {} with size {}", inputs[0],
          at.begin, at.begin + at.length, at.dim, at.full_size);
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
  outputs[0].shape[static_cast<int>(at.dim)] = at.full_size;
}};

std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim, Site site) {
  require(size > 0, "split: the part size must be positive, got {}", size);
  const int64_t total = x.size(dim);
  std::vector<Tensor> parts;
  for (int64_t begin = 0; begin < total; begin += size) {
    parts.push_back(slice(x, dim, begin, std::min(begin + size, total), site));
  }
  return parts;
}

std::array<Tensor, 3> split3(const Tensor& x, Site site) {
  const Tensor inputs[] = {x};
  const Outputs parts = apply(definition(Op::split3), inputs, {}, site);
  return {parts[0], parts[1], parts[2]};
}
RULES(split3) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          const Tensor& x = inputs[0];
          require(x.rank() >= 1 && x.shape()[-1] % 3 == 0,
                  "split3: the last size of {} is not a multiple of 3", x);
          for (OutputSpec& output : outputs) {
            output = {x.shape(), x.dtype()};
            output.shape[-1] /= 3;
          }
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      Shape part = saved.input_shape(0);
      part[-1] /= 3;
      std::array<Tensor, 3> parts;
      for (size_t i = 0; i < 3; ++i) {
        parts[i] = grads[i].defined() ? grads[i] : zeros(part, saved.input_dtype(0));
      }
      return {cat(parts, -1)};
    },
    .view =
        [](const Tensor& x, const Attributes&, const OutputSpec& spec, int index) {
          return x.alias(spec.shape, x.strides(), index * spec.shape[-1] * x.strides()[-1]);
        }};

Tensor expand(const Tensor& x, const Shape& shape, Site site) {
  numel(shape);  // throws for a negative size
  require(broadcast(x.shape(), shape, "expand") == shape, "expand: {} cannot become {}", x, shape);
  return apply(Op::expand, {x}, LayoutAttributes{shape}, site);
}
RULES(expand) = {
    .shape = layout_shape,
    // The engine sums it to the input's shape.
    .derivative = [](const Saved&, std::span<const Tensor> grads) -> Grads { return {grads[0]}; },
    .view =
        [](const Tensor& x, const Attributes&, const OutputSpec& spec, int) {
          return x.alias(spec.shape, broadcast_strides(x.shape(), x.strides(), spec.shape));
        }};

Tensor contiguous(const Tensor& x, Site site) {
  return x.is_contiguous() ? x : apply(Op::contiguous, {x}, {}, site);
}
RULES(contiguous) = {
    .shape = same_as_input,
    .derivative = [](const Saved&, std::span<const Tensor> grads) -> Grads { return {grads[0]}; }};

namespace {
struct CastAttributes {
  DType dtype;
};
}  // namespace

Tensor cast(const Tensor& x, DType dtype, Site site) {
  return x.dtype() == dtype ? x : apply(Op::cast, {x}, CastAttributes{dtype}, site);
}
RULES(cast) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          outputs[0] = {inputs[0].shape(), attributes.as<CastAttributes>().dtype};
        },
    // The engine casts the gradient to the input's dtype.
    .derivative = [](const Saved&, std::span<const Tensor> grads) -> Grads { return {grads[0]}; }};

Tensor cat(std::span<const Tensor> tensors, int64_t dim, Site site) {
  require(!tensors.empty(), "cat: needs at least one tensor");
  const int64_t d = normalize_dim(dim, tensors[0].rank(), "cat");
  const auto most = static_cast<size_t>(definition(Op::cat).inputs);
  if (tensors.size() <= most) {
    return apply(definition(Op::cat), tensors, DimAttributes{d}, site)[0];
  }
  std::vector<Tensor> groups;
  for (size_t i = 0; i < tensors.size(); i += most) {
    groups.push_back(cat(tensors.subspan(i, std::min(most, tensors.size() - i)), d));
  }
  return cat(groups, d, site);
}
RULES(cat) = {.shape =
                  [](std::span<const Tensor> inputs, const Attributes& attributes,
                     std::span<OutputSpec> outputs) {
                    const int dim = static_cast<int>(attributes.as<DimAttributes>().dim);
                    Shape shape = inputs[0].shape();
                    for (const Tensor& input : inputs.subspan(1)) {
                      require_same_dtype(inputs[0], input, "cat");
                      require(input.rank() == shape.rank() &&
                                  input.shape().without(dim) == shape.without(dim),
                              "cat: {} and {} differ outside dimension {}", inputs[0], input, dim);
                      shape[dim] += input.shape()[dim];
                    }
                    outputs[0] = {shape, inputs[0].dtype()};
                  },
              .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                const int dim = static_cast<int>(saved.attributes().as<DimAttributes>().dim);
                Grads result;
                int64_t begin = 0;
                for (int i = 0; saved.has_input(i); ++i) {
                  const int64_t size = saved.input_shape(i)[dim];
                  result.push_back(slice(grads[0], dim, begin, begin + size));
                  begin += size;
                }
                return result;
              }};

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& ids, Site site) {
  const int64_t d = normalize_dim(dim, x.rank(), "index_select");
  return apply(Op::index_select, {x, ids}, DimAttributes{d}, site);
}
RULES(index_select) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          require(inputs.size() == 2, "index_select: needs a tensor and ids");
          require_integers(inputs[1], "index_select", "ids");
          require(inputs[1].rank() == 1, "index_select: ids must have one dimension, got {}",
                  inputs[1]);
          outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
          outputs[0].shape[static_cast<int>(attributes.as<DimAttributes>().dim)] =
              inputs[1].numel();
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const int64_t dim = saved.attributes().as<DimAttributes>().dim;
      const int64_t size = saved.input_shape(0)[static_cast<int>(dim)];
      return {
          apply(Op::index_select_backward, {grads[0], saved.input(1)}, DimAttributes{dim, size}),
          {}};
    }};

RULES(index_select_backward) = {.shape = [](std::span<const Tensor> inputs,
                                            const Attributes& attributes,
                                            std::span<OutputSpec> outputs) {
  const auto at = attributes.as<DimAttributes>();
  constexpr const char* kOp = "index_select_backward";
  require(inputs.size() == 2, "{}: takes dy and ids, got {} tensors", kOp, inputs.size());
  require_integers(inputs[1], kOp, "ids");
  require(0 <= at.dim && at.dim < inputs[0].rank() && inputs[1].rank() == 1 &&
              inputs[0].shape()[static_cast<int>(at.dim)] == inputs[1].numel(),
          "{}: {} does not fit ids {} along dimension {}", kOp, inputs[0], inputs[1], at.dim);
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
  outputs[0].shape[static_cast<int>(at.dim)] = at.full_size;
}};

}  // namespace faultline
