#include "nn/language_model.h"

namespace faultline::nn {

int64_t LanguageModel::parameter_count() {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->value().numel();
  return count;
}

}  // namespace faultline::nn
