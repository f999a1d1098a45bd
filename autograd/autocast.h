#pragma once

#include "autograd/op.h"

namespace faultline {

// The inputs as autocast's column wants them; `storage` holds the casts. Integers and f64 are never
// cast. Returns `given` itself when nothing changes.
std::span<const Tensor> autocast_inputs(const OpDefinition& op, std::span<const Tensor> given,
                                        Grads& storage);

}  // namespace faultline
