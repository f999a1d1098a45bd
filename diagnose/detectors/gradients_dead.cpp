// gradients.dead: while a model learns, every parameter that its optimizer is to move must get a
// gradient that is not all zeros.
//
// Sees: OptimizerEvent, with the gradient of each parameter as the step used it: undefined (nothing
// reached it), zero in every element, or alive. Of parameters without one also whether an op of the
// forward pass reads them (LaunchEvent): a path that was cut looks different from no path.
// Fires: when a parameter was undefined or zero in 150 steps running while others were alive, and
// in 8 times as many as it ever was before it came back. Why 150: an expert that gets tokens in
// every 20th step, at random, is out of 150 in a row once in 2,200 tries; what was cut is out of
// all of them. Why 8 times: one that is used still less waits by its own measure; if each step is
// as likely as another, a gap of 8 times the mean comes once in 3,000. Silent, and why:
//   - a tensor with single rows of zeros, such as an embedding of tokens not seen: it is alive;
//   - the first step of LoRA, in which dA = B^T (..) is exactly 0 because B is: the step moves B,
//     and the next gradient of A is not 0. Steps with lr 0 move nothing and are not counted;
//   - a parameter that is not trainable;
//   - steps in which no parameter is alive: then the objective itself is constant (or underflows),
//     and no path of a single parameter is to blame.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/launch.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kPatience = 150;
constexpr int64_t kGaps = 8;
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

// A parameter that was without a pulse at least once.
struct Patient {
  Pulse pulse = Pulse::undefined;
  int64_t steps = 0;                // without one, running
  int64_t longest_gap = 0;          // of earlier ones
  const std::byte* data = nullptr;  // where its value lies
  const char* reader = "";          // an op that read it in the last forward pass

  bool is_dead() const { return steps >= std::max(kPatience, kGaps * longest_gap); }
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
    std::vector<std::pair<const Parameter*, Pulse>> pulses;
    int64_t alive = 0;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        if (!parameter->trainable()) continue;
        pulses.emplace_back(parameter, pulse_of(parameter->gradient()));
        alive += pulses.back().second == Pulse::alive ? 1 : 0;
      }
    }
    if (alive == 0) return;
    for (const auto& [parameter, pulse] : pulses) note(parameter, pulse);
    judge(event, alive);
    for (auto& [parameter, patient] : patients_) patient.reader = "";
  }

  void note(const Parameter* parameter, Pulse pulse) {
    if (pulse != Pulse::alive) {
      Patient& patient = patients_[parameter];
      patient.pulse = pulse;
      patient.data = parameter->value().view().data;
      ++patient.steps;
    } else if (const auto found = patients_.find(parameter); found != patients_.end()) {
      Patient& patient = found->second;
      patient.longest_gap = std::max(patient.longest_gap, std::exchange(patient.steps, 0));
    }
  }

  // In the order of the optimizer's groups, so that the evidence is the same in every run.
  void judge(const optim::OptimizerEvent& event, int64_t alive) {
    int64_t undefined = 0;
    int64_t zero = 0;
    const Parameter* first = nullptr;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        const auto patient = patients_.find(parameter);
        if (patient == patients_.end() || !patient->second.is_dead()) continue;
        ++(patient->second.pulse == Pulse::zero ? zero : undefined);
        if (first == nullptr) first = parameter;
      }
    }
    if (first == nullptr) return;
    fired_ = true;
    report("grad.dead", 0.95, "backward",
           fmt::format("for {} steps {} parameters had no gradient and {} one of zeros only, while "
                       "{} were alive; first {}: {}",
                       patients_.at(first).steps, undefined, zero, alive, first->name(),
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
