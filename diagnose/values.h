#pragma once

#include <cstdint>
#include <vector>

#include "core/launch.h"

// How detectors read tensors: as doubles, from host memory. An undefined view has no elements.
namespace faultline::diagnose {

// Elements 0, stride, 2 stride, ... in row-major order.
std::vector<double> sample(const TensorView& view, int64_t stride = 1);

// `count` elements in row-major order from number `first` on.
std::vector<double> read_values(const TensorView& view, int64_t first, int64_t count);

// The first element that is NaN or infinite, or -1. Integers are finite.
int64_t first_non_finite(const TensorView& view);

}  // namespace faultline::diagnose
