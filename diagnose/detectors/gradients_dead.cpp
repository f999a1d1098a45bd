// gradients.dead: while a model learns, every parameter that its optimizer is to move must get a
// gradient that is not all zeros.
//
// Sees: OptimizerEvent, with the gradient of each parameter as the step used it: undefined (nothing
// reached it), zero in every element, or alive. Of parameters without one also whether an op of the
// forward pass reads them (LaunchEvent): a path that was cut looks different from no path.
// Fires: when a parameter was undefined or zero in 16 steps running while others were alive. Why
// 16: what is left out of a step at random, half of the time (a layer, an expert, an adapter), is
// out of 16 in a row once in 65,536 tries; what was cut is out of all of them. Silent, and why:
//   - a tensor with single rows of zeros, such as an embedding of tokens not seen: it is alive;
//   - the first step of LoRA, in which dA = B^T (..) is exactly 0 because B is: the step moves B,
//     and the next gradient of A is not 0. Steps with lr 0 move nothing and are not counted;
//   - a parameter that is not trainable;
//   - steps in which no parameter is alive: then the objective itself is constant (or underflows),
//     and no path of a single parameter is to blame.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/launch.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kPatience = 16;
constexpr int64_t kElementsAtOnce = 256;

enum class Pulse : uint8_t { undefined, zero, alive };

Pulse pulse_of(const Tensor& gradient) {
  if (!gradient.defined()) return Pulse::undefined;
  const TensorView view = gradient.view();
  for (int64_t first = 0; first < view.numel(); first += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, view.numel() - first);
    for (const double value : read_values(view, first, count)) {
      if (value != 0) return Pulse::alive;
    }
  }
  return Pulse::zero;
}

// A parameter without a pulse.
struct Patient {
  Pulse pulse = Pulse::undefined;
  int64_t steps = 0;                // running
  const std::byte* data = nullptr;  // where its value lies
  const char* reader = "";          // an op that read it in the last forward pass
};

class GradientsDead : public Watcher {
 public:
  GradientsDead(Context& context, Findings& findings)
      : Watcher(context, findings, "gradients.dead") {
    on(&GradientsDead::launched);
    on(&GradientsDead::optimizer_stepped);
  }

 private:
  using Patients = std::unordered_map<const Parameter*, Patient>;

  void launched(const LaunchEvent& event) {
    if (patients_.empty() || fired_ || event.launch.label.phase != Phase::forward) return;
    const KernelArgs& args = event.launch.args;
    for (auto& [parameter, patient] : patients_) {
      for (int i = 0; i < args.input_count; ++i) {
        if (args.inputs[i].data == patient.data) patient.reader = event.launch.label.op;
      }
    }
  }

  void optimizer_stepped(const optim::OptimizerEvent& event) {
    if (fired_ || event.lr == 0 || event.groups.empty()) return;
    looked();
    Patients found;
    int64_t alive = 0;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        if (!parameter->trainable()) continue;
        const Pulse pulse = pulse_of(parameter->gradient());
        if (pulse == Pulse::alive) {
          ++alive;
          patients_.erase(parameter);
        } else {
          found[parameter] = {pulse, 0, parameter->value().view().data, ""};
        }
      }
    }
    if (alive == 0) return;
    for (auto& [parameter, patient] : found) {
      const Patient& known = patients_[parameter];
      patient.steps = known.steps + 1;
      patient.reader = known.reader;
      patients_[parameter] = patient;
    }
    judge(event, alive);
    for (auto& [parameter, patient] : patients_) patient.reader = "";
  }

  // In the order of the optimizer's groups, so that the evidence is the same in every run.
  void judge(const optim::OptimizerEvent& event, int64_t alive) {
    int64_t undefined = 0;
    int64_t zero = 0;
    const Parameter* first = nullptr;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        const auto patient = patients_.find(parameter);
        if (patient == patients_.end() || patient->second.steps < kPatience) continue;
        ++(patient->second.pulse == Pulse::zero ? zero : undefined);
        if (first == nullptr) first = parameter;
      }
    }
    if (first == nullptr) return;
    fired_ = true;
    report("grad.dead", 0.95, "backward",
           fmt::format("for {} steps {} parameters had no gradient and {} one of zeros only, while "
                       "{} were alive; first {}: {}",
                       kPatience, undefined, zero, alive, first->name(),
                       what_it_means(patients_.at(first))));
  }

  static std::string what_it_means(const Patient& patient) {
    if (patient.pulse == Pulse::zero) {
      return "backward reached it, and every factor on the way was 0";
    }
    if (*patient.reader == 0) return "no op of the forward pass reads it";
    return fmt::format(
        "{} reads it, but backward does not come back: its result is detached or "
        "not used",
        patient.reader);
  }

  Patients patients_;
  bool fired_ = false;
};

}  // namespace

DETECTOR(gradients_dead) {
  return {"gradients.dead",
          WatchLevel::full,
          {{"grad.dead",
            "Some parameters get no gradient, or one of zeros only, step after step, while others "
            "learn: their path to the loss is cut (undefined) or blocked by zeros.",
            "Undefined: look for a detach, a NoGrad, or a result that is not used above the first "
            "such parameter. Zero: look for units that are never active.",
            "Every trainable parameter has a gradient with an element that is not 0."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<GradientsDead>(context, findings);
          }};
}

}  // namespace faultline::diagnose
