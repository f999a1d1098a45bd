#pragma once

#include <string>
#include <vector>

#include "nn/language_model.h"
#include "nn/lora.h"

namespace faultline::nn {

// How much an adapter adds to its layer.
struct AdapterDelta {
  std::string adapter;    // its path
  double base_norm = 0;   // ||W x||, 2-norm over all positions
  double delta_norm = 0;  // ||s B A x||
  // 0 for an adapter that does nothing yet; infinity where W x is 0.
  double ratio() const { return delta_norm == 0 ? 0 : delta_norm / base_norm; }
};

// The active adapters of a forward pass in evaluation mode, in the order in which they ran.
std::vector<AdapterDelta> trace_adapters(LanguageModel& model, const ModelInput& input);

}  // namespace faultline::nn
