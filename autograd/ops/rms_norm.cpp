#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {

// y = x rstd weight over the last dimension, rstd = 1 / sqrt(mean(x^2) + epsilon)
// (Zhang and Sennrich 2019).
Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Site site) {
  const Tensor inputs[] = {x, weight};
  return apply(definition(Op::rms_norm), inputs, RmsNormAttributes{epsilon}, site)[0];
}

RULES(rms_norm) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          const Tensor& x = inputs[0];
          require(inputs.size() == 2, "rms_norm: takes x and weight");
          require_floats(x, "rms_norm");
          require(x.rank() >= 1 && x.shape()[-1] > 0, "rms_norm: {} has no last dimension", x);
          const int64_t features = x.shape()[-1];
          if (inputs[1].defined()) {
            require_same_dtype(x, inputs[1], "rms_norm");
            require(inputs[1].shape() == Shape{features}, "rms_norm: weight must be [{}], got {}",
                    features, inputs[1]);
          }
          outputs[0] = {x.shape(), x.dtype()};
          outputs[1] = {Shape{x.numel() / features}, at_least_f32(x.dtype())};
        },
    // With n = x rstd and g = dy weight: dx = rstd (g - n mean(g n)), dweight = sum of dy n.
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      require(!grads[1].defined(), "rms_norm: its root mean square has no derivative");
      const Tensor weight = saved.has_input(1) ? saved.input(1) : Tensor();
      const Tensor inputs[] = {contiguous(grads[0]), saved.input(0), weight, saved.output(1)};
      const Outputs result = apply(definition(Op::rms_norm_backward), inputs, saved.attributes());
      return {result[0], result[1]};
    }};

RULES(rms_norm_backward) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      constexpr const char* kOp = "rms_norm_backward";
      require(inputs.size() == 4, "{}: takes dy, x, weight and rstd, got {} tensors", kOp,
              inputs.size());
      const Tensor& x = inputs[1];
      require_alike(inputs[0], x, kOp);
      require_floats(x, kOp);
      require(x.rank() >= 1 && x.shape()[-1] > 0, "{}: {} has no last dimension", kOp, x);
      const Shape features{x.shape()[-1]};
      require(inputs[3].defined() && inputs[3].numel() == x.numel() / features[0] &&
                  (!inputs[2].defined() || inputs[2].shape() == features),
              "{}: {} does not fit weight {} and rstd {}", kOp, x, inputs[2], inputs[3]);
      outputs[0] = {x.shape(), x.dtype()};
      outputs[1] = {features, x.dtype()};
    }};

}  // namespace faultline
