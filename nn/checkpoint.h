#pragma once

#include <functional>

#include "core/tensor.h"

namespace faultline::nn {

// Runs a segment of a forward pass and keeps nothing of it but its result; the backward pass runs
// it again when it comes there ("Training deep nets with sublinear memory cost", Chen et al. 2016).
// Memory of a segment's length for the time of a second forward pass. Gradients are those without
// it, bit by bit: the tape stays as it is and only what its entries kept is computed anew, so
// sums run in the same order, and no backward pass runs inside another one.
//
// The segment may use any tensors from outside. The second run must do what the first did: the same
// ops on the same numbers. Dropout does, while its key is not moved on in between; a cache that the
// segment appends to does not. Throws InvalidArgument, in the backward pass, when the second run
// makes other ops than the first.
Tensor checkpoint(std::function<Tensor()> segment);

// A segment is about to be run again, and was.
struct RecomputeBeginEvent {};
struct RecomputeEndEvent {};

}  // namespace faultline::nn
