#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {

// y = silu(gate) up, silu(x) = x sigmoid(x) (Shazeer 2020).
Tensor swiglu(const Tensor& gate, const Tensor& up, Site site) {
  return apply(Op::swiglu, {gate, up}, {}, site);
}

RULES(swiglu) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 2, "swiglu: takes gate and up, got {} tensors", inputs.size());
          require_alike(inputs[0], inputs[1], "swiglu");
          require_floats(inputs[0], "swiglu");
          outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
        },
    // dgate = dy up silu'(gate), dup = dy silu(gate).
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const Tensor inputs[] = {grads[0], saved.input(0), saved.input(1)};
      const Outputs result = apply(definition(Op::swiglu_backward), inputs);
      return {result[0], result[1]};
    }};

RULES(swiglu_backward) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      constexpr const char* kOp = "swiglu_backward";
      require(inputs.size() == 3, "{}: takes dy, gate and up, got {} tensors", kOp, inputs.size());
      require_alike(inputs[0], inputs[1], kOp);
      require_alike(inputs[0], inputs[2], kOp);
      require_floats(inputs[0], kOp);
      outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
      outputs[1] = outputs[0];
    }};

}  // namespace faultline
