#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {

// loss_n = lse_n - logits[n, label_n] with lse_n = log sum_v exp(logits[n, v]), found in one pass
// over the vocabulary; no softmax is stored. dlogits = (softmax - one_hot(label)) dloss_n.
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& labels, int64_t ignore_index,
                          Site site) {
  const Tensor inputs[] = {logits, labels};
  return apply(definition(Op::cross_entropy), inputs, CrossEntropyAttributes{ignore_index},
               site)[0];
}

RULES(cross_entropy) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 2 && inputs[1].defined(), "cross_entropy: needs logits, labels");
          const Tensor& logits = inputs[0];
          const Tensor& labels = inputs[1];
          require_floats(logits, "cross_entropy");
          require_integers(labels, "cross_entropy", "labels");
          require(
              logits.rank() == 2 && labels.rank() == 1 && labels.shape()[0] == logits.shape()[0],
              "cross_entropy: needs logits [N, V] and labels [N], got {} and {}", logits, labels);
          require(logits.shape()[1] > 0, "cross_entropy: {} has no classes", logits);
          const bool is_16_bit = size_of(logits.dtype()) == 2;
          const DType dtype = is_16_bit ? DType::f32 : logits.dtype();
          outputs[0] = {labels.shape(), dtype};
          outputs[1] = {labels.shape(), dtype};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      require(!grads[1].defined(), "cross_entropy: its log-sum-exp output has no derivative");
      return {apply(Op::cross_entropy_backward,
                    {saved.input(0), saved.input(1), saved.output(1), contiguous(grads[0])},
                    saved.attributes()),
              {}};
    }};

RULES(cross_entropy_backward) = {
    .shape = [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
      constexpr const char* kOp = "cross_entropy_backward";
      require(inputs.size() == 4, "{}: takes logits, labels, lse and dloss, got {} tensors", kOp,
              inputs.size());
      require_floats(inputs[0], kOp);
      require_integers(inputs[1], kOp, "labels");
      require_alike(inputs[2], inputs[3], kOp);
      require(inputs[0].rank() == 2 && inputs[1].shape() == Shape{inputs[0].shape()[0]} &&
                  inputs[2].shape() == inputs[1].shape(),
              "{}: needs logits [N, V] and labels, lse, dloss [N], got {}, {}, {}", kOp, inputs[0],
              inputs[1], inputs[2]);
      outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
    }};

}  // namespace faultline
