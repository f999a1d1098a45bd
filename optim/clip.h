#pragma once

#include <vector>

#include "autograd/parameter.h"

namespace faultline::optim {

// Device-side results, so that a recorded step needs no host value.
struct Clip {
  Tensor norm;    // f64 [1], global 2-norm of all gradients
  Tensor factor;  // f64 [1], min(1, max_norm / norm); NaN when the norm is not finite
};

// Measures the global gradient norm (in f64 over blocks of 1,024 elements, added in order) and the
// factor that clips it (Pascanu et al. 2013). Gradients are not written: hand `factor` to
// Optimizer::step. `max_norm` 0 measures only: the factor is 1.
Clip clip_by_global_norm(const std::vector<Parameter*>& parameters, double max_norm);

}  // namespace faultline::optim
