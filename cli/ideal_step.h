#pragma once

#include <functional>
#include <map>
#include <string>

#include "cli/timings.h"
#include "core/launch.h"

namespace faultline::cli {

// Collects the matrix products that a step launches, by kernel, shapes and strides.
class ProductRecorder : public LaunchRecorder {
 public:
  void record(const Stream& stream, const Launch& launch) override;

  // Milliseconds that all collected products take alone and undisturbed: each distinct one is run
  // several times on scratch memory, and its least time counts as often as it was launched.
  double milliseconds() const;

 private:
  struct Product {
    const KernelRecord* kernel = nullptr;
    KernelArgs args;  // its addresses are of the step's tensors: only the layouts are used
    int64_t count = 0;
  };
  std::map<std::string, Product> products_;
};

// Milliseconds to move `bytes` (read plus written) by copying, undisturbed, on one thread or on all
// of the current Context, whichever takes less.
double copy_milliseconds(double bytes);

// Milliseconds to read `bytes` in order, undisturbed, on all threads of the current Context.
double read_milliseconds(double bytes);

// What one call takes when nothing disturbs it: the least of several.
double undisturbed_milliseconds(const std::function<void()>& body);

}  // namespace faultline::cli
