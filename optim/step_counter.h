#pragma once

#include "core/launch.h"

namespace faultline::optim {

// How an optimizer counts its steps: the dtype of the device-side counter and the kernel that
// advances it (outputs[0], one element).
struct StepCounter {
  DType dtype = DType::i64;
  const KernelRecord* advance = nullptr;
  int64_t start = 0;  // what it holds before the first step
};

// Asked once, when an optimizer is made.
struct StepCounterSeam {
  static constexpr const char* name = "step counter";
  using Signature = StepCounter();
  // int64, advanced by checked addition: it stays at 2^63 - 1 instead of wrapping, and the step's
  // OptimizerEvent reports that by equal counts before and after.
  static StepCounter standard();
};

}  // namespace faultline::optim
