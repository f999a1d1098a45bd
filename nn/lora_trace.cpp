#include "nn/lora_trace.h"

#include <cmath>

namespace faultline::nn {
namespace {
double norm(const Tensor& x) {
  double squares = 0;
  for (const double value : x.to_vector<double>()) squares += value * value;
  return std::sqrt(squares);
}
}  // namespace

std::vector<AdapterDelta> trace_adapters(LanguageModel& model, const ModelInput& input) {
  const NoGrad off;
  const EvaluationMode evaluation(model);
  std::vector<AdapterDelta> deltas;
  const auto watch = Context::current().events.subscribe<LoraEvent>([&](const LoraEvent& event) {
    deltas.push_back({event.adapter.path(), norm(event.base), norm(event.delta)});
  });
  model.forward(input);
  return deltas;
}

}  // namespace faultline::nn
