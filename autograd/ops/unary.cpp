#include "autograd/functional.h"
#include "autograd/rules.h"

// Elementwise functions of one tensor, all from the table: y = f(x), dx = dy * f'(x), with f and f'
// in kernels/elementwise.h.
namespace faultline {
namespace {

template <Op kBackward>
Grads unary_derivative(const Saved& saved, std::span<const Tensor> grads) {
  return {apply(kBackward, {grads[0], saved.input(0), saved.output(0)})};
}

// dy, x and y are alike.
template <Op kBackward>
void unary_backward_shape(std::span<const Tensor> inputs, const Attributes&,
                          std::span<OutputSpec> outputs) {
  const char* op = definition(kBackward).name;
  require(inputs.size() == 3, "{}: takes dy, x and y, got {} tensors", op, inputs.size());
  require_alike(inputs[0], inputs[1], op);
  require_alike(inputs[1], inputs[2], op);
  outputs[0] = {inputs[1].shape(), inputs[1].dtype()};
}

}  // namespace

#define FAULTLINE_UNARY(name, autocast)                                                        \
  Tensor name(const Tensor& x, Site site) { return apply(Op::name, {x}, {}, site); }           \
  RULES(name) = {.shape = same_as_input, .derivative = unary_derivative<Op::name##_backward>}; \
  RULES(name##_backward) = {.shape = unary_backward_shape<Op::name##_backward>};
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL

// y = scale x + offset; dx = scale dy.
Tensor affine(const Tensor& x, double scale, double offset, Site site) {
  return apply(Op::affine, {x}, AffineAttributes{scale, offset}, site);
}

RULES(affine) = {.shape = same_as_input,
                 .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                   const double scale = saved.attributes().as<AffineAttributes>().scale;
                   return {scale == 1 ? grads[0] : affine(grads[0], scale, 0)};
                 }};

}  // namespace faultline
