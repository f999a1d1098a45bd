#pragma once

#include <string>

#include "core/tensor.h"

namespace faultline {

// Throws InvalidArgument that names `file`, the tensor `name` of it, and the first element that is
// NaN or infinite. Nothing for a tensor of integers. Any shape and layout; f16, bf16, f32 or f64.
void require_finite(const Tensor& tensor, const std::string& file, const std::string& name);

}  // namespace faultline
