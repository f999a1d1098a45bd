#pragma once

#include "core/tensor.h"

namespace faultline {

// Shows tensors to whoever watches launches: a launch of the `observe` kernel, which does nothing.
// Being a launch, it is part of a recorded list and is seen at every replay. `what` is the label's
// op, for example "attention". Costs one comparison when nobody watches. Undefined tensors are
// allowed.
void observe(const char* what, std::initializer_list<Tensor> tensors,
             const Attributes& attributes = {}, Site site = Site::here());

}  // namespace faultline
