// counter.advances: each applied optimizer step must raise the optimizer's own step counter by 1,
// and the first one must make it 1.
//
// Sees: OptimizerEvent, which carries the counter before and after, as doubles.
// Fires: at the first applied step
//   - after which the counter is not one more than before. One of few significant bits stands still
//     where 1 is less than half an ulp: bf16 at 256, fp16 at 2048. One of few bits wraps;
//   - after which it is below 1: the update was computed for step 0, where 1 - beta^0 = 0.
// These are integers, so there is no threshold.
// Silent: whatever the counter starts from (a resumed run starts high). From 2^53 on neighbouring
// integers are one double, so standing still says nothing there, and is what an int64 that
// saturates at 2^63 - 1 does rightly; only a counter that falls is wrong there.
#include <fmt/format.h>

#include <cmath>

#include "diagnose/detector.h"
#include "optim/optimizer.h"

namespace faultline::diagnose {
namespace {

// What is wrong with a step that left `after` where `before` was; "" where nothing is.
const char* what_is_wrong(double before, double after) {
  constexpr double kIntegersEnd = 0x1p53;
  if (std::isnan(before) || std::isnan(after)) return "it is not a number";
  if (after < before) return "it wrapped around";
  if (before >= kIntegersEnd) return "";
  if (after == before) return "it stands still, 1 is less than it can count";
  if (after - before != 1) return "it does not count one for each step";
  return after < 1 ? "it started below 0, so an update was computed for a step before the first"
                   : "";
}

class CounterAdvances : public Watcher {
 public:
  CounterAdvances(Context& context, Findings& findings)
      : Watcher(context, findings, "counter.advances") {
    on(&CounterAdvances::optimizer_stepped);
  }

 private:
  void optimizer_stepped(const optim::OptimizerEvent& event) {
    looked();
    const char* wrong = what_is_wrong(event.counted_before, event.counted_after);
    if (*wrong == 0) return;
    report("adamw.step-counter", 0.98, event.optimizer,
           fmt::format("applied step {}: the counter read {:.0f} before and {:.0f} after: {}",
                       event.applied, event.counted_before, event.counted_after, wrong));
  }
};

}  // namespace

DETECTOR(counter_advances) {
  return {
      "counter.advances",
      WatchLevel::light,
      {{"adamw.step-counter",
        "The step counter no longer advances by one for each applied step, or does not begin at "
        "1, so the bias corrections 1 - beta^t belong to another step than the moments.",
        "Count in int64, advance before the first update, and compute the corrections in double; "
        "never cast a step counter with the parameters.",
        "The counter is 1 after the first applied step and advances by 1 at each: then the update "
        "is wrong elsewhere."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<CounterAdvances>(context, findings);
      }};
}

}  // namespace faultline::diagnose
