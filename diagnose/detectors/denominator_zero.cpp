// denominator.zero: AdamW divides by sqrt(v) + epsilon, which is positive.
//
// Sees: every launch of AdamW, with the gradients, moments and weights that its table points to;
// and GradientEvent, at which the weights are those before the update.
// Fires: at the first weight that is not finite after a launch although all weights of its tensor
// were before and its gradient is, although the update with the same moments is finite in double,
// and where v and epsilon are both 0 once they are rounded to fp16. The last condition makes the
// reason certain; none is a threshold.
// Silent: gradients that are not finite, a clip factor or bias corrections that are not usable (all
// faults that came before), a tensor that was not finite before, or was not seen before, and an
// epsilon that was set to 0.
// Serves one case: no other division of an optimizer has a denominator that must not be 0.
#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "autograd/tape.h"
#include "core/float16.h"
#include "diagnose/adamw_launch.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

double in_fp16(double value) { return static_cast<double>(float16(value)); }

TensorView view_of(float* data, int64_t count) {
  return {reinterpret_cast<std::byte*>(data), DType::f32, {count}, {1}};
}

class DenominatorZero : public Watcher {
 public:
  DenominatorZero(Context& context, Findings& findings)
      : Watcher(context, findings, "denominator.zero") {
    on(&DenominatorZero::joined);
    on(&DenominatorZero::launched);
  }

 private:
  void joined(const GradientEvent& event) {
    const TensorView weights = event.leaf.view();
    if (weights.dtype == DType::f32) look(weights);
  }

  void launched(const LaunchEvent& event) {
    const auto adamw = adamw_launch(event.launch);
    if (!adamw || !adamw->is_sound()) return;
    for (const UpdateTensors& tensors : adamw->tensors) {
      looked();
      const bool were_finite = finite_.contains(tensors.parameter);
      const int64_t at = look(view_of(tensors.parameter, tensors.count));
      if (at >= 0 && were_finite) judge(event.launch, *adamw, tensors, at);
    }
  }

  // The first weight that is not finite, or -1; kept for the next look.
  int64_t look(const TensorView& weights) {
    const int64_t at = first_non_finite(weights);
    const auto* const tensor = weights.as<float>();
    if (at < 0) {
      finite_.insert(tensor);
    } else {
      finite_.erase(tensor);
    }
    return at;
  }

  void judge(const Launch& launch, const AdamwLaunch& adamw, const UpdateTensors& tensors,
             int64_t at) {
    const double gradient = tensors.gradient[at];
    const double first = tensors.first[at];
    const double second = tensors.second[at];
    if (!std::isfinite(gradient) || !std::isfinite(adamw.update(0, first, second))) return;
    const double root = std::sqrt(second / adamw.correction2);
    const double epsilon = adamw.attributes.epsilon;
    if (in_fp16(second) != 0 || in_fp16(epsilon) != 0) return;
    report("adam.fp16-eps", 0.97, launch.label.op,
           fmt::format("kernel {}: element {} became {} from the finite gradient {:.3g}; its "
                       "denominator sqrt(v) + epsilon is {:.3g} + {:.3g}, in fp16 0",
                       launch.kernel->name, at, tensors.parameter[at], gradient, root, epsilon));
  }

  std::unordered_set<const float*> finite_;  // parameters whose weights were, when last seen
};

}  // namespace

DETECTOR(denominator_zero) {
  return {"denominator.zero",
          WatchLevel::full,
          {{"adam.fp16-eps",
            "AdamW's state is in fp16, where its epsilon of 1e-8 is 0, and so is v = 0.001 g^2 "
            "after the first step of a gradient below 5.5e-3: it divides by 0.",
            "Keep moments and epsilon in f32, whatever the type of the weights.",
            "A weight, a gradient, the clip factor or a bias correction was not finite before the "
            "update."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<DenominatorZero>(context, findings);
          }};
}

}  // namespace faultline::diagnose
