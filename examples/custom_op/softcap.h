#pragma once

#include "core/tensor.h"

// cap * tanh(x / cap): the identity near 0, never beyond +-cap. Gemma 2 bounds its attention scores
// and logits with it (Gemma Team, "Gemma 2: improving open language models at a practical size",
// 2024, section 2). Any shape, any float dtype; cap > 0. Throws InvalidArgument otherwise.
faultline::Tensor softcap(const faultline::Tensor& x, double cap,
                          faultline::Site site = faultline::Site::here());
