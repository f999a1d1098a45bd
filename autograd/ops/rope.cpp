#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {
namespace {

void check_table(const Tensor& x_BHTD, const Tensor& table, const char* what) {
  const Shape& shape = x_BHTD.shape();
  const int64_t pairs = shape[3] / 2;
  require(table.defined() && table.rank() == 3 &&
              (table.shape()[0] == 1 || table.shape()[0] == shape[0]) &&
              table.shape()[1] == shape[2] && table.shape()[2] == pairs,
          "rope: {} for {} must be [1, {}, {}] or [{}, {}, {}], got {}", what, x_BHTD, shape[2],
          pairs, shape[0], shape[2], pairs, table);
  // Angles need more bits than a 16-bit x has.
  const DType dtype = at_least_f32(x_BHTD.dtype());
  require(table.dtype() == dtype, "rope: {} for {} must be {}, got {}", what, x_BHTD, name(dtype),
          name(table.dtype()));
}

}  // namespace

// Each pair (a, b) of a head's elements becomes (a cos - b sin, b cos + a sin): turned by the angle
// of its position, so that scores of turned queries and keys know only how far apart they are
// (Su et al. 2021).
Tensor rope(const Tensor& x_BHTD, const Tensor& cosines, const Tensor& sines, RopeLayout layout,
            Site site) {
  return apply(Op::rope, {x_BHTD, cosines, sines}, RopeAttributes{layout, RopeTurn::forward}, site);
}

RULES(rope) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 3 && inputs[0].defined(),
                  "rope: takes x, cosines and sines, got {} tensors", inputs.size());
          const Tensor& x = inputs[0];
          require_floats(x, "rope");
          require(x.rank() == 4 && x.shape()[3] % 2 == 0,
                  "rope: x must be [B, H, T, D] with an even D, got {}", x);
          check_table(x, inputs[1], "cosines");
          check_table(x, inputs[2], "sines");
          require(inputs[1].shape() == inputs[2].shape(), "rope: cosines {} and sines {} differ",
                  inputs[1], inputs[2]);
          outputs[0] = {x.shape(), x.dtype()};
        },
    // dx is dy turned the other way round.
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const auto attributes = saved.attributes().as<RopeAttributes>();
      const bool forward = attributes.turn == RopeTurn::forward;
      const RopeAttributes inverse{attributes.layout, forward ? RopeTurn::back : RopeTurn::forward};
      return {apply(Op::rope, {grads[0], saved.input(1), saved.input(2)}, inverse), {}, {}};
    }};

}  // namespace faultline
