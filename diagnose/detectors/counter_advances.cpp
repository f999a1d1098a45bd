// counter.advances: each applied optimizer step must raise the optimizer's own step counter by 1.
//
// Sees: OptimizerEvent, which carries the counter before and after.
// Fires: at the first applied step after which the counter is not one more than before. A counter
// of few significant bits stops where 1 is less than half an ulp: bf16 at 256, fp16 at 2048.
// Silent: whatever the counter starts from (a resumed run starts high). From 2^53 on neighbouring
// integers are one double, so nothing is said there.
#include <fmt/format.h>

#include <cmath>

#include "diagnose/detector.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

class CounterAdvances : public Watcher {
 public:
  CounterAdvances(Context& context, Findings& findings)
      : Watcher(context, findings, "counter.advances") {
    on(&CounterAdvances::optimizer_stepped);
  }

 private:
  void optimizer_stepped(const optim::OptimizerEvent& event) {
    constexpr double kIntegersEnd = 0x1p53;
    if (std::abs(event.counted_before) >= kIntegersEnd) return;
    looked();
    // Written so that a NaN fires.
    if (event.counted_after - event.counted_before == 1) return;
    report("adamw.step-counter", 0.98, event.optimizer,
           fmt::format("applied step {}: the counter read {} before and {} after; expected {}",
                       event.applied, event.counted_before, event.counted_after,
                       event.counted_before + 1));
  }
};

}  // namespace

DETECTOR(counter_advances) {
  return {
      "counter.advances",
      WatchLevel::light,
      {{"adamw.step-counter",
        "The step counter no longer advances by one for each applied step, so the bias "
        "corrections 1 - beta^t belong to another step than the moments.",
        "Count in int64 and compute the corrections in double from it; never cast a step "
        "counter with the parameters.",
        "The counter advances by 1 at every applied step: then the update is wrong elsewhere."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<CounterAdvances>(context, findings);
      }};
}

}  // namespace faultline::diagnose
