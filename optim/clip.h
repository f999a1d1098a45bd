#pragma once

#include <vector>

#include "autograd/parameter.h"

namespace faultline::optim {

// Device-side results, so that a recorded step needs no host value.
struct Clip {
  Tensor norm;    // f64 [1], global 2-norm of all gradients
  Tensor factor;  // f64 [1], min(1, max_norm / norm); NaN when the norm is not finite
};

// Clips by the global norm (Pascanu et al. 2013) without writing to a gradient: hand `factor` to
// Optimizer::step. What it measures with stays at one place, so a recorded step can be replayed.
class GradientClip {
 public:
  // `max_norm` 0 measures only: the factor is 1.
  GradientClip(std::vector<Parameter*> parameters, double max_norm);

  // The norm of the gradients now, in f64 over blocks of 1,024 elements added in order, and the
  // factor. The tensors are written anew by the next call.
  Clip measure();

 private:
  std::vector<Parameter*> parameters_;
  double max_norm_;
  Tensor table_;
  Tensor squares_;
  Clip clip_;
};

}  // namespace faultline::optim
