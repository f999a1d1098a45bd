#include "autograd/functional.h"
#include "autograd/rules.h"
#include "core/context.h"

// Elementwise functions of two tensors. Derivatives come back in the broadcast shape; the engine
// sums them to each input's.
namespace faultline {
namespace {

template <Op kOp>
void binary_shape(std::span<const Tensor> inputs, const Attributes&,
                  std::span<OutputSpec> outputs) {
  broadcast_shape(inputs, definition(kOp).name, outputs);
}

template <Op kOp>
void comparison_shape(std::span<const Tensor> inputs, const Attributes&,
                      std::span<OutputSpec> outputs) {
  broadcast_shape(inputs, definition(kOp).name, outputs);
  outputs[0].dtype = DType::boolean;
}

// 1 where a beats b, a half where they are equal, 0 elsewhere.
Tensor share(const Tensor& larger, const Tensor& smaller) {
  const Tensor wins = cast(less(smaller, larger), larger.dtype());
  const Tensor ties = cast(equal(smaller, larger), larger.dtype());
  return wins + 0.5 * ties;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, Site site) { return apply(Op::add, {a, b}, {}, site); }
RULES(add) = {.shape = binary_shape<Op::add>,
              .derivative = [](const Saved&, std::span<const Tensor> grads) -> Grads {
                return {grads[0], grads[0]};
              }};

Tensor sub(const Tensor& a, const Tensor& b, Site site) { return apply(Op::sub, {a, b}, {}, site); }
RULES(sub) = {.shape = binary_shape<Op::sub>,
              .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                return {grads[0], saved.wants(1) ? neg(grads[0]) : Tensor()};
              }};

// d(ab) = dy b, dy a.
Tensor mul(const Tensor& a, const Tensor& b, Site site) { return apply(Op::mul, {a, b}, {}, site); }
RULES(mul) = {.shape = binary_shape<Op::mul>,
              .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                const Tensor& dy = grads[0];
                return {saved.wants(0) ? dy * saved.input(1) : Tensor(),
                        saved.wants(1) ? dy * saved.input(0) : Tensor()};
              }};

// d(a / b) = dy / b, -dy a / b^2.
Tensor div(const Tensor& a, const Tensor& b, Site site) { return apply(Op::div, {a, b}, {}, site); }
RULES(div) = {.shape = binary_shape<Op::div>,
              .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                const Tensor& b = saved.input(1);
                const Tensor da = grads[0] / b;
                return {da, saved.wants(1) ? neg(da * (saved.input(0) / b)) : Tensor()};
              }};

Tensor maximum(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::maximum, {a, b}, {}, site);
}
RULES(maximum) = {.shape = binary_shape<Op::maximum>,
                  .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                    const Tensor& a = saved.input(0);
                    const Tensor& b = saved.input(1);
                    return {grads[0] * share(a, b), grads[0] * share(b, a)};
                  }};

Tensor minimum(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::minimum, {a, b}, {}, site);
}
RULES(minimum) = {.shape = binary_shape<Op::minimum>,
                  .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                    const Tensor& a = saved.input(0);
                    const Tensor& b = saved.input(1);
                    return {grads[0] * share(b, a), grads[0] * share(a, b)};
                  }};

Tensor equal(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::equal, {a, b}, {}, site);
}
RULES(equal) = {.shape = comparison_shape<Op::equal>};

Tensor less(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::less, {a, b}, {}, site);
}
RULES(less) = {.shape = comparison_shape<Op::less>};

Tensor less_equal(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::less_equal, {a, b}, {}, site);
}
RULES(less_equal) = {.shape = comparison_shape<Op::less_equal>};

Tensor logical_and(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::logical_and, {a, b}, {}, site);
}
RULES(logical_and) = {.shape = comparison_shape<Op::logical_and>};

Tensor logical_not(const Tensor& a, Site site) { return apply(Op::logical_not, {a}, {}, site); }
RULES(logical_not) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      outputs[0] = {inputs[0].shape(), DType::boolean};
    }};

Tensor isfinite(const Tensor& x, Site site) { return apply(Op::isfinite, {x}, {}, site); }
RULES(isfinite) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      outputs[0] = {inputs[0].shape(), DType::boolean};
    }};

bool all_finite(const Tensor& x) {
  const NoGrad off;
  return x.numel() == 0 || sum(logical_not(isfinite(x))).item<int64_t>() == 0;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::where, {condition, a, b}, {}, site);
}
RULES(where) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 3 && inputs[0].dtype() == DType::boolean,
                  "where: needs a bool condition and two tensors, got {}", inputs[0]);
          require_same_dtype(inputs[1], inputs[2], "where");
          const Shape values = broadcast(inputs[1].shape(), inputs[2].shape(), "where");
          outputs[0] = {broadcast(inputs[0].shape(), values, "where"), inputs[1].dtype()};
        },
    // A blocked branch gets an exact zero, never 0 * NaN.
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const Tensor zero = zeros({}, grads[0].dtype());
      return {{}, where(saved.input(0), grads[0], zero), where(saved.input(0), zero, grads[0])};
    }};

}  // namespace faultline
