// backward.in-forward: no backward pass that adds to gradients may begin while a module is still in
// its forward pass.
//
// Sees: BackwardEvent, with the module that runs at that moment (the Context knows it, as for every
// launch); and GradientEvent, which says that the pass added to what a leaf holds.
// Fires: when a pass that began inside a module's forward adds to a leaf. The objective of a step
// exists only after the forward pass is over, so what is added can not be its gradient. To count
// contributions instead would be unsound: gradient accumulation, and a loop with several losses,
// add more than once on purpose, and both do so between forward passes.
// Silent: gradient accumulation; gradients(...), which adds to nobody (a gradient penalty inside of
// a forward pass is computed so); a backward pass inside of another one, as checkpointing that runs
// a segment again makes it; and a pass begun in a root module, which has no name to be known by.
// It serves one case, because few programs ever do this: it is what a debugging aid does.
#include <fmt/format.h>

#include "autograd/tape.h"
#include "diagnose/detector.h"

namespace faultline::diagnose {
namespace {

class BackwardInForward : public Watcher {
 public:
  BackwardInForward(Context& context, Findings& findings)
      : Watcher(context, findings, "backward.in-forward"), context_(context) {
    on(&BackwardInForward::begins);
    on(&BackwardInForward::joined);
  }

 private:
  void begins(const BackwardEvent&) {
    looked();
    module_ = context_.phase == Phase::forward ? context_.module : "";
  }

  void joined(const GradientEvent& event) {
    if (fired_ || *module_ == 0) return;
    fired_ = true;
    report("debug.observer-backward", 0.95, "backward",
           fmt::format("a backward pass began inside of the forward pass of {} and added to the "
                       "gradient of {}",
                       module_, event.name.empty() ? "a leaf" : event.name));
  }

  const Context& context_;
  const char* module_ = "";  // in whose forward pass the backward pass began
  bool fired_ = false;
};

}  // namespace

DETECTOR(backward_in_forward) {
  return {"backward.in-forward",
          WatchLevel::light,
          {{"debug.observer-backward",
            "Something that only watches (a forward hook) runs a backward pass of its own: it adds "
            "to the gradients that the step will use.",
            "Look with gradients(...), which leaves what the leaves hold alone, or with a hook on "
            "the backward pass that the step runs anyway.",
            "Gradients with and without the observer are equal, bit by bit."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<BackwardInForward>(context, findings);
          }};
}

}  // namespace faultline::diagnose
