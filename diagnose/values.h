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
// The same into `values`, whose memory is used again.
void read_values(const TensorView& view, int64_t first, int64_t count, std::vector<double>& values);

// The largest relative error of one rounding to a floating dtype: half the distance from 1 to the
// next number, 2^-8 for bf16, 2^-11 for f16, 2^-24 for f32, 2^-53 for f64.
double unit_roundoff(DType dtype);

// The largest finite number of a floating dtype.
double largest_finite(DType dtype);

// The larger of two distances; NaN where either is, which std::max and a plain comparison lose.
double larger_or_nan(double a, double b);

// The first element that is NaN or infinite, or -1. Integers are finite.
int64_t first_non_finite(const TensorView& view);

}  // namespace faultline::diagnose
