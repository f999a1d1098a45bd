#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {

// y = weight[ids]; the rows of dy are added to the rows of dweight in the order of the ids.
Tensor embedding(const Tensor& weight, const Tensor& ids, Site site) {
  return apply(Op::embedding, {weight, ids}, {}, site);
}

RULES(embedding) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 2 && inputs[0].rank() == 2,
                  "embedding: needs a weight [V, C] and ids, got {}", inputs[0]);
          require_floats(inputs[0], "embedding");
          require_integers(inputs[1], "embedding", "ids");
          require(inputs[1].rank() < kMaxRank, "embedding: ids {} have too many dimensions",
                  inputs[1]);
          Shape shape = inputs[1].shape();
          shape.push_back(inputs[0].shape()[1]);
          outputs[0] = {shape, inputs[0].dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      return {apply(Op::embedding_backward, {contiguous(grads[0]), saved.input(1)},
                    DimAttributes{0, saved.input_shape(0)[0]}),
              {}};
    }};

RULES(embedding_backward) = {.shape = [](std::span<const Tensor> inputs,
                                         const Attributes& attributes,
                                         std::span<OutputSpec> outputs) {
  constexpr const char* kOp = "embedding_backward";
  require(inputs.size() == 2, "{}: takes dy and ids, got {} tensors", kOp, inputs.size());
  require_integers(inputs[1], kOp, "ids");
  require(
      inputs[0].rank() >= 1 && inputs[0].shape().without(inputs[0].rank() - 1) == inputs[1].shape(),
      "{}: dy {} must be rows for ids {}", kOp, inputs[0], inputs[1]);
  // Many rows meet in one: 16-bit gradients are summed in f32, and the engine rounds once.
  const DType dtype = inputs[0].dtype();
  outputs[0] = {{attributes.as<DimAttributes>().full_size, inputs[0].shape()[-1]},
                size_of(dtype) == 2 ? DType::f32 : dtype};
}};

}  // namespace faultline
