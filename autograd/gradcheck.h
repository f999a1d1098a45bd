#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

// Checks of a derivative against the function itself, for the ops of this library and for those of
// its users (examples/custom_op.cpp).
namespace faultline {

// A function of a list of tensors, deterministic: same inputs, same outputs.
using TensorFunction = std::function<Tensor(std::span<const Tensor> inputs)>;

// One element of a gradient that is not what it should be.
struct GradientMismatch {
  int input = 0;        // number of the input
  int64_t element = 0;  // row-major number within it
  int64_t output = -1;  // the output element whose gradient it is; -1: of the random combination
  double reverse = 0;   // by reverse mode
  double expected = 0;  // by the independent way
  double allowed = 0;   // the largest difference that would have passed
};

struct GradcheckReport {
  std::vector<GradientMismatch> mismatches;  // worst first
  int64_t compared = 0;                      // gradient elements
  const char* method = "";

  bool passed() const { return mismatches.empty() && compared > 0; }
  // "72 gradient elements agree with central differences", or the worst mismatch with input,
  // element and both values.
  std::string text() const;
};

// Compares the reverse-mode gradients of `f` at `inputs` with central differences.
//
// `inputs`: floating ones are f64 and get a gradient; integer and bool ones are constants. Any
// shape; the layout that `f` sees is contiguous. `f` returns one f64 tensor. Throws InvalidArgument
// for other dtypes, and whatever `f` throws.
//
// Checked are the gradient of a random combination of the outputs, and, for up to 64 outputs, of
// each output alone. A NaN anywhere is a mismatch.
//
// With step h = cbrt(eps) max(1, |x|) a central difference errs by h^2 f'''/6 and by the rounding
// of f over h. So |reverse - difference| may be 1e-7 max(1, |reverse|, |difference|) for the first
// (third derivatives up to about 1e4) plus 64 eps sum|outputs| / h for the second. Inputs must be
// further than h from a kink.
GradcheckReport gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs);

// The same comparison with f'(x) = Im f(x + ih) / h, h = 1e-100 (Squire and Trapp, "Using complex
// variables to estimate derivatives of real functions", SIAM Review 40, 1998): nothing is
// subtracted, so the derivative is exact to rounding. `f` is also called on c128 tensors, which the
// reference kernels serve; it must follow its input's dtype.
//
// |reverse - complex| may be 1e-11 (max(|reverse|, |complex|) + sum|terms|), where the terms are
// what the combination adds up: 45,000 roundings of f64, room for sums of some thousand terms.
GradcheckReport complex_step(const TensorFunction& f, const std::vector<Tensor>& inputs);

}  // namespace faultline
