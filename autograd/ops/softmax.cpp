#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {
namespace {

template <Op kOp>
void row_shape(std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
  const char* op = definition(kOp).name;
  require_floats(inputs[0], op);
  require(inputs[0].rank() >= 1, "{}: needs at least one dimension, got {}", op, inputs[0]);
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
}

// dy and y are alike.
template <Op kOp>
void row_backward_shape(std::span<const Tensor> inputs, const Attributes& attributes,
                        std::span<OutputSpec> outputs) {
  const char* op = definition(kOp).name;
  require(inputs.size() == 2, "{}: takes dy and y, got {} tensors", op, inputs.size());
  require_alike(inputs[0], inputs[1], op);
  row_shape<kOp>(inputs, attributes, outputs);
}

}  // namespace

// y_i = exp(x_i - max x) / sum_j exp(x_j - max x) over the last dimension.
// dx = y (dy - sum(y dy)).
Tensor softmax(const Tensor& x, Site site) { return apply(Op::softmax, {x}, {}, site); }
RULES(softmax) = {.shape = row_shape<Op::softmax>,
                  .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                    return {apply(Op::softmax_backward, {grads[0], saved.output(0)})};
                  }};
RULES(softmax_backward) = {.shape = row_backward_shape<Op::softmax_backward>};

// y_i = x_i - max x - log sum_j exp(x_j - max x); dx = dy - exp(y) sum(dy).
Tensor log_softmax(const Tensor& x, Site site) { return apply(Op::log_softmax, {x}, {}, site); }
RULES(log_softmax) = {.shape = row_shape<Op::log_softmax>,
                      .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
                        return {apply(Op::log_softmax_backward, {grads[0], saved.output(0)})};
                      }};
RULES(log_softmax_backward) = {.shape = row_backward_shape<Op::log_softmax_backward>};

// Softmax over the visible keys only. A forbidden key has weight 0, so the softmax derivative gives
// it 0; a row with no visible key is all zeros, and so is its gradient.
Tensor masked_softmax(const Tensor& scores, const Tensor& key_valid, const Tensor& documents,
                      const MaskAttributes& mask, Site site) {
  return apply(Op::masked_softmax, {scores, key_valid, documents}, mask, site);
}

RULES(masked_softmax) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes& attributes,
           std::span<OutputSpec> outputs) {
          const Tensor& scores = inputs[0];
          require_floats(scores, "masked_softmax");
          require(scores.rank() == 4, "masked_softmax: scores must be [B, H, Q, K], got {}",
                  scores);
          const Shape& shape = scores.shape();
          require_mask(attributes.as<MaskAttributes>(), inputs[1], inputs[2],
                       {.batch = shape[0], .queries = shape[2], .keys = shape[3]},
                       "masked_softmax");
          outputs[0] = {scores.shape(), scores.dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const double scale = saved.attributes().as<MaskAttributes>().scale;
      return {affine(apply(Op::softmax_backward, {grads[0], saved.output(0)}), scale, 0), {}, {}};
    }};

}  // namespace faultline
