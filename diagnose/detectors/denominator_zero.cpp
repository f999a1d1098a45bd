// denominator.zero: AdamW divides by sqrt(v) + epsilon, which is positive.
//
// Sees: every launch of AdamW, with the gradients, moments and weights that its table points to.
// Fires: at the first weight that is not finite after a launch although its gradient is, although
// the update with the same moments is finite in double, and although sqrt(v) and epsilon are both 0
// once they are rounded to fp16. The last condition makes the reason certain; none is a threshold.
// Silent: gradients that are not finite, a clip factor or bias corrections that are not usable (all
// faults that came before), a weight that was not finite before, and an epsilon that was set to 0.
// Serves one case: no other division of an optimizer has a denominator that must not be 0.
#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

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
    on(&DenominatorZero::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    const auto adamw = adamw_launch(event.launch);
    if (!adamw || !adamw->is_sound()) return;
    for (const UpdateTensors& tensors : adamw->tensors) {
      looked();
      const int64_t at = first_non_finite(view_of(tensors.parameter, tensors.count));
      if (at < 0 || !broken_.insert(tensors.parameter).second) continue;
      judge(event.launch, *adamw, tensors, at);
    }
  }

  void judge(const Launch& launch, const AdamwLaunch& adamw, const UpdateTensors& tensors,
             int64_t at) {
    const double gradient = tensors.gradient[at];
    const double first = tensors.first[at];
    const double second = tensors.second[at];
    if (!std::isfinite(gradient) || !std::isfinite(first) || !std::isfinite(second)) return;
    const double root = std::sqrt(second / adamw.correction2);
    const double epsilon = adamw.attributes.epsilon;
    if (in_fp16(second) != 0 || in_fp16(epsilon) != 0) return;
    report("adam.fp16-eps", 0.97, launch.label.op,
           fmt::format("kernel {}: element {} became {} from the finite gradient {:.3g}; its "
                       "denominator sqrt(v) + epsilon is {:.3g} + {:.3g}, in fp16 0",
                       launch.kernel->name, at, tensors.parameter[at], gradient, root, epsilon));
  }

  std::unordered_set<const float*> broken_;  // parameters with a weight that is not finite
};

}  // namespace

DETECTOR(denominator_zero) {
  return {"denominator.zero",
          WatchLevel::full,
          {{"adam.fp16-eps",
            "AdamW runs in fp16, where its epsilon of 1e-8 is 0 and the square of a gradient below "
            "2.4e-4 as well: it divides by 0.",
            "Keep moments and epsilon in f32, whatever the type of the weights.",
            "A gradient, the clip factor or a bias correction was not finite before the update."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<DenominatorZero>(context, findings);
          }};
}

}  // namespace faultline::diagnose
