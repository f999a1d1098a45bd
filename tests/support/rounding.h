#pragma once

#include <vector>

#include "tests/support/op_samples.h"

namespace faultline::test {

// One unit in the last place of 1, and the smallest normal number.
struct Precision {
  double epsilon;
  double smallest;
};
Precision precision_of(DType dtype);

// All elements of all outputs, one behind the other.
std::vector<double> flattened(const Tensors& tensors);

// How far a stable computation of `f` in a dtype may be from the f64 result, element by element.
//
// A stable algorithm gives the exact result for inputs that are off by a few roundings, rounded a
// few times (Higham, "Accuracy and stability of numerical algorithms", section 1.5). So the bound
// is 4 (eps |y| + movement) + 2 eps max |y| + smallest: `movement` is the largest change of y, in
// f64, when every input moves one eps up or down (16 random choices of the signs). It carries the
// conditioning of the function at these inputs, cancellation included. The third term allows for
// intermediate results that are as large as the largest output.
std::vector<double> rounding_bound(const Run& f, const Tensors& f64_inputs, DType dtype);

// The f64 copies of floating tensors; others unchanged.
Tensors widened(const Tensors& tensors);

// `run`'s gradients with respect to all floating inputs, as a function of those inputs. The
// cotangent is the same fixed number for every dtype, exact in all of them.
Run gradient_of(const Run& run);

}  // namespace faultline::test
