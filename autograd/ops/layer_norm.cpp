#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {
namespace {

void check_affine(const Tensor& x, const Tensor& parameter, const char* what) {
  if (!parameter.defined()) return;
  require_same_dtype(x, parameter, "layer_norm");
  require(parameter.shape() == Shape{x.shape()[-1]}, "layer_norm: {} must be [{}], got {}", what,
          x.shape()[-1], parameter);
}

}  // namespace

// y = (x - mean) rstd weight + bias over the last dimension, rstd = 1 / sqrt(variance + epsilon)
// with the biased variance (Ba, Kiros, Hinton 2016).
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                  Site site) {
  const Tensor inputs[] = {x, weight, bias};
  return apply(definition(Op::layer_norm), inputs, LayerNormAttributes{epsilon}, site)[0];
}

RULES(layer_norm) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          const Tensor& x = inputs[0];
          require(inputs.size() == 3, "layer_norm: takes x, weight, bias");
          require_floats(x, "layer_norm");
          require(x.rank() >= 1 && x.shape()[-1] > 0, "layer_norm: {} has no last dimension", x);
          check_affine(x, inputs[1], "weight");
          check_affine(x, inputs[2], "bias");
          const Shape statistics{x.numel() / x.shape()[-1]};
          outputs[0] = {x.shape(), x.dtype()};
          outputs[1] = {statistics, at_least_f32(x.dtype())};
          outputs[2] = outputs[1];
        },
    // With n = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - n mean(g n)).
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      require(!grads[1].defined() && !grads[2].defined(),
              "layer_norm: its mean and deviation have no derivative");
      const Tensor weight = saved.has_input(1) ? saved.input(1) : Tensor();
      const Tensor inputs[] = {contiguous(grads[0]), saved.input(0), weight, saved.output(1),
                               saved.output(2)};
      const Outputs result = apply(definition(Op::layer_norm_backward), inputs, saved.attributes());
      return {result[0], result[1], result[2]};
    }};

RULES(layer_norm_backward) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      constexpr const char* kOp = "layer_norm_backward";
      require(inputs.size() == 5, "{}: takes dy, x, weight, mean and rstd, got {} tensors", kOp,
              inputs.size());
      require_alike(inputs[0], inputs[1], kOp);
      require_alike(inputs[3], inputs[4], kOp);
      require_floats(inputs[1], kOp);
      require(inputs[1].rank() >= 1 && inputs[1].shape()[-1] > 0, "{}: {} has no last dimension",
              kOp, inputs[1]);
      const Shape features{inputs[1].shape()[-1]};
      require(inputs[3].numel() == inputs[1].numel() / features[0] &&
                  (!inputs[2].defined() || inputs[2].shape() == features),
              "{}: {} does not fit weight {} and mean {}", kOp, inputs[1], inputs[2], inputs[3]);
      outputs[0] = {inputs[1].shape(), inputs[1].dtype()};
      outputs[1] = {features, inputs[1].dtype()};
      outputs[2] = outputs[1];
    }};

}  // namespace faultline
