// gradients.cleared: when a step begins, no parameter may still hold the gradient of the last one.
//
// Sees: StepBeginEvent, which a loop emits after clearing and before the step's first backward.
// Accumulation over micro-batches happens inside of a step and is not seen here.
// Fires: at the first step at whose beginning a parameter holds a gradient with a value that is not
// 0. Silent: an undefined gradient, or zeros (clearing by writing zeros is as good).
#include <fmt/format.h>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

bool holds_something(const Parameter& parameter) {
  const Tensor gradient = parameter.gradient();
  if (!gradient.defined()) return false;
  for (const double value : sample(gradient.view())) {
    if (!(value == 0)) return true;  // NaN too
  }
  return false;
}

class GradientsCleared : public Watcher {
 public:
  GradientsCleared(Context& context, Findings& findings)
      : Watcher(context, findings, "gradients.cleared") {
    on(&GradientsCleared::step_begins);
  }

 private:
  void step_begins(const train::StepBeginEvent& event) {
    looked();
    if (fired_) return;
    int64_t kept = 0;
    const Parameter* first = nullptr;
    for (const Parameter* parameter : event.parameters) {
      if (!holds_something(*parameter)) continue;
      ++kept;
      if (first == nullptr) first = parameter;
    }
    if (kept == 0) return;
    fired_ = true;
    report(
        "optim.missing-zero-grad", 0.97, "backward",
        fmt::format("step {} begins with the gradients of {} of {} parameters not cleared, first "
                    "{}",
                    event.step, kept, event.parameters.size(), first->name()));
  }

  bool fired_ = false;
};

}  // namespace

DETECTOR(gradients_cleared) {
  return {"gradients.cleared",
          WatchLevel::light,
          {{"optim.missing-zero-grad",
            "Gradients are not cleared between steps, so step k uses the sum of the gradients of "
            "steps 1 to k.",
            "Clear the gradients of all parameters before each step (not before each micro-batch).",
            "Every gradient is undefined or zero when a step begins."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<GradientsCleared>(context, findings);
          }};
}

}  // namespace faultline::diagnose
