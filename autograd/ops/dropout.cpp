#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {

// y = x keep / (1 - p). The mask is a pure function of the key and the place, so the derivative is
// the same op on dy and nothing is stored (Srivastava et al. 2014; counters: Salmon et al. 2011).
Tensor dropout(const Tensor& x, const Tensor& key, double p, uint32_t layer, Site site) {
  require(p >= 0 && p < 1, "dropout: the probability must be in [0, 1), got {}", p);
  return p == 0 ? x : apply(Op::dropout, {x, key}, DropoutAttributes{p, layer}, site);
}

RULES(dropout) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require_floats(inputs[0], "dropout");
          require(inputs.size() == 2 && inputs[1].defined() && inputs[1].dtype() == DType::i64 &&
                      inputs[1].shape() == Shape{3},
                  "dropout: needs a key i64[3] of seed, step and first sequence, got {}",
                  inputs[1]);
          outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      return {apply(Op::dropout, {contiguous(grads[0]), saved.input(1)}, saved.attributes()), {}};
    }};

}  // namespace faultline
