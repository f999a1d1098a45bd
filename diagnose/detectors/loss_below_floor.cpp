// loss.below-floor: on fresh uniform tokens over V symbols no honest causal model expects a loss
// below ln V nats, because the next token is independent of everything that it may see.
//
// Sees: FloorProbeEvent, the loss on such tokens with its standard error; and of the micro-batches
// whether the labels that their loss takes equal their own inputs, to tell two causes apart.
// Fires: when the loss is more than 4 standard errors below the floor (chance 3e-5 a probe).
// That something leaks is then certain; what leaks is seen in one case only: where every label
// equals its own input, the model copies, labels.no-shift. Else it names no cause: masks that are
// inverted, added or multiplied lower the loss alike, and the detectors that look at attention
// itself tell them apart.
#include <fmt/format.h>

#include "diagnose/detector.h"
#include "diagnose/loss_labels.h"

namespace faultline::diagnose {
namespace {

constexpr double kDeviations = 4;

class LossBelowFloor : public Watcher {
 public:
  LossBelowFloor(Context& context, Findings& findings)
      : Watcher(context, findings, "loss.below-floor") {
    on(&LossBelowFloor::batch_comes);
    on(&LossBelowFloor::launched);
    on(&LossBelowFloor::goes_backward);
    on(&LossBelowFloor::probed);
  }

 private:
  void batch_comes(const train::BatchEvent& event) {
    if (batches_seen_ < kBatchesToJudge) loss_labels_.batch_comes(event);
  }
  void launched(const LaunchEvent& event) { loss_labels_.launched(event); }

  void goes_backward(const train::ObjectiveEvent&) {
    const std::optional<LabelRows> rows = loss_labels_.take();
    if (!rows) return;
    ++batches_seen_;
    for (size_t i = 0; i < rows->labels.size(); ++i) {
      if (rows->labels[i] == kIgnoredLabel) continue;
      ++labels_;
      copies_ += rows->labels[i] == rows->inputs[i] ? 1 : 0;
    }
  }

  void probed(const train::FloorProbeEvent& event) {
    looked();
    if (!(event.loss < event.floor - kDeviations * event.deviation)) return;
    const bool copied = labels_ > 0 && copies_ == labels_;
    report(copied ? "labels.no-shift" : "", copied ? 0.6 : 0.9, "loss",
           fmt::format("loss {:.4f} on {} fresh uniform tokens, {:.1f} standard errors below the "
                       "floor {:.6f}; {} of {} labels seen equal their own input",
                       event.loss, event.tokens, (event.floor - event.loss) / event.deviation,
                       event.floor, copies_, labels_));
  }

  static constexpr int kBatchesToJudge = 4;
  LossLabels loss_labels_;
  int batches_seen_ = 0;
  int64_t labels_ = 0;
  int64_t copies_ = 0;
};

}  // namespace

DETECTOR(loss_below_floor) {
  return {
      "loss.below-floor",
      WatchLevel::full,
      {{"labels.no-shift", "The labels are the inputs themselves: the loss falls to 0 by copying.",
        "Make the label at t from token t + 1, in exactly one place.",
        "Labels differ from the inputs at their own positions."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<LossBelowFloor>(context, findings);
      }};
}

}  // namespace faultline::diagnose
