#pragma once

#include "core/launch.h"

namespace faultline {

// to[i] = from[i] for every index, any layouts, any dtypes (rounded as convert() does); `from` is
// broadcast to the shape of `to`. The two must not overlap. Runs on up to `threads` threads.
void copy_elements(const TensorView& from, const TensorView& to, int threads);

// Makes every element of `to` 0, or false.
void zero_elements(const TensorView& to, int threads);

}  // namespace faultline
