// labels.alignment: the label at t must be the token at t + 1.
//
// Sees: BatchEvent, the batch as the model gets it.
// Fires: when every label that counts equals the token at its own position, while the same labels
// do not all equal the next token. Silent: text in which a token often follows itself ("aaaa"):
// there some label differs from its own token, or all labels equal the next one as well. Fewer than
// 16 labels say nothing.
#include <fmt/format.h>

#include "diagnose/detector.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kEnoughLabels = 16;

// How many labels there are, and how many of them equal which input.
struct Alignment {
  int64_t labels = 0;
  int64_t own = 0;        // the input at the same position
  int64_t with_next = 0;  // labels that have a next input in their row
  int64_t next = 0;       // the input one position later
};

Alignment align(const Batch& batch) {
  const auto inputs = batch.inputs.to_vector<int32_t>();
  const auto labels = batch.labels.to_vector<int32_t>();
  const int64_t length = batch.inputs.size(1);
  Alignment result;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kIgnoredLabel) continue;
    ++result.labels;
    result.own += labels[i] == inputs[i] ? 1 : 0;
    if (static_cast<int64_t>(i) % length + 1 == length) continue;
    ++result.with_next;
    result.next += labels[i] == inputs[i + 1] ? 1 : 0;
  }
  return result;
}

class LabelsAlignment : public Watcher {
 public:
  LabelsAlignment(Context& context, Findings& findings)
      : Watcher(context, findings, "labels.alignment") {
    on(&LabelsAlignment::batch_comes);
  }

 private:
  void batch_comes(const train::BatchEvent& event) {
    const Alignment found = align(event.batch);
    if (found.labels < kEnoughLabels) return;
    looked();
    if (found.own < found.labels || found.next == found.with_next) return;
    report("labels.no-shift", 0.97, "labels",
           fmt::format("all {} labels of a batch equal the token at their own position; {} of {} "
                       "equal the next token",
                       found.labels, found.next, found.with_next));
  }
};

}  // namespace

DETECTOR(labels_alignment) {
  return {
      "labels.alignment",
      WatchLevel::light,
      {{"labels.no-shift",
        "The labels are the inputs themselves, not shifted by one: the model learns to copy the "
        "token that it is given.",
        "Make the label at t from token t + 1, in exactly one place.",
        "Labels equal the next token and not their own."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<LabelsAlignment>(context, findings);
      }};
}

}  // namespace faultline::diagnose
