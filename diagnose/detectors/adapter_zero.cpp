// adapter.zero: of the two factors of an adapter one must not be zero, or neither will ever move.
//
// Sees: OptimizerEvent, with the values of each pair of parameters X.lora_A.weight and
// X.lora_B.weight after the step, and with their gradients.
// Fires: when every element of both factors and of both gradients is exactly 0 after a step. That
// is for ever by construction: the gradient of A has the factor B, that of B the factor A. So there
// is no threshold and nothing to wait for. Silent: the healthy first step, in which B is 0, and so
// the gradient of A, while A is not; an adapter that begins with A = 0 and B not; pairs without a
// gradient, whose path was cut (that is gradients.dead's); and frozen ones. Serves one case,
// because no other pair of parameters multiplies each other's gradient.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

constexpr const char* kA = ".lora_A.weight";
constexpr const char* kB = ".lora_B.weight";

bool all_zero(const Tensor& x) {
  const std::vector<double> values = sample(x.view());
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

bool is_stuck(const Parameter& factor) {
  const Tensor gradient = factor.gradient();
  return gradient.defined() && all_zero(factor.value()) && all_zero(gradient);
}

class AdapterZero : public Watcher {
 public:
  AdapterZero(Context& context, Findings& findings) : Watcher(context, findings, "adapter.zero") {
    on(&AdapterZero::optimizer_stepped);
  }

 private:
  void optimizer_stepped(const optim::OptimizerEvent& event) {
    if (fired_) return;
    const std::map<std::string, const Parameter*> factors = factors_of(event);
    int64_t pairs = 0;
    int64_t stuck = 0;
    std::string first;
    for (const auto& [name, a] : factors) {
      if (!name.ends_with(kA)) continue;
      const std::string adapter = name.substr(0, name.size() - std::string(kA).size());
      const auto b = factors.find(adapter + kB);
      if (b == factors.end()) continue;
      ++pairs;
      if (!is_stuck(*b->second) || !is_stuck(*a)) continue;
      if (stuck++ == 0) first = adapter;
    }
    if (pairs > 0) looked();
    if (stuck == 0) return;
    fired_ = true;
    report("lora.both-zero", 0.98, event.optimizer,
           fmt::format("both factors of {} of {} adapters are 0 in every element, and so are their "
                       "gradients, for ever; first {}",
                       stuck, pairs, first));
  }

  static std::map<std::string, const Parameter*> factors_of(const optim::OptimizerEvent& event) {
    std::map<std::string, const Parameter*> factors;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        const std::string& name = parameter->name();
        const bool is_factor = name.ends_with(kA) || name.ends_with(kB);
        if (is_factor && parameter->trainable()) factors[name] = parameter;
      }
    }
    return factors;
  }

  bool fired_ = false;
};

}  // namespace

DETECTOR(adapter_zero) {
  return {"adapter.zero",
          WatchLevel::full,
          {{"lora.both-zero",
            "Both factors of an adapter are zero: the gradient of each has the other as a factor, "
            "so neither will ever move.",
            "Initialise A at random and B to zero; with deferred initialisation, do it after the "
            "memory is there.",
            "One of the factors, or one of their gradients, has an element that is not 0."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AdapterZero>(context, findings);
          }};
}

}  // namespace faultline::diagnose
