// labels.alignment: the label at t must be the token at t + 1, an end token too.
//
// Sees: the tokens of BatchEvent, and the labels that the loss takes of them (see LossLabels): what
// cross_entropy reads until the ObjectiveEvent or the next batch, or else the batch's. So labels
// that are the inputs are right where the loss shifts them. Counts go on over micro-batches until
// there are 16 labels (for the end: 8 ends of documents), are judged, and begin anew.
// Fires, while the labels do not all equal the next token, when every label that counts equals
//   - its own token: labels.no-shift
//   - the token after next: labels.double-shift;
// and when documents end in the batch, all with one id, and that id is never a label, the labels
// before the ends being ignored: labels.eos-masked, or lora.repetition where all that is trained
// (StepBeginEvent) are adapters.
// Why so many: labels that are next tokens raise neither of the first two alarms, whatever their
// number; 16 keep a handful of labels of another kind from meaning anything. A program that
// predicts ends at all does so before each, so 8 ends without a label are no accident.
// Silent: text in which tokens repeat ("aaaa", "abab"), because there all labels equal the next
// token; text of period two whose labels fit both wrong shifts, which says that something is wrong
// and not what; documents that end without an end token; a loss that gives ignored positions some
// label and weighs them with 0; and one that takes a part of each row of which nobody sees where it
// begins. logits[:, 1:] with labels[:, 1:] leaves out the first place and is right, logits[:, :-1]
// with the same labels shifts them again: only the memory of the logits tells the two apart.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/detector.h"
#include "diagnose/loss_labels.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kEnoughLabels = 16;
constexpr int64_t kEnoughEnds = 8;

// How many labels equal an input at some distance, of those that have one in their row.
struct Matches {
  int64_t equal = 0;
  int64_t of = 0;

  void count(const LabelRows& rows, size_t i, int64_t distance) {
    if (!rows.has_neighbour(i, distance)) return;
    ++of;
    equal += rows.labels[i] == rows.inputs[i + static_cast<size_t>(distance)] ? 1 : 0;
  }
  bool all() const { return equal == of; }
};

struct Alignment {
  Matches own;         // every label has its own input
  Matches next;        // the input one place later
  Matches after_next;  // two places later

  void count(const LabelRows& rows) {
    for (size_t i = 0; i < rows.labels.size(); ++i) {
      if (rows.labels[i] == kIgnoredLabel) continue;
      own.count(rows, i, 0);
      next.count(rows, i, 1);
      after_next.count(rows, i, 2);
    }
  }
};

// The ends of documents that have a label before them.
struct Ends {
  int64_t seen = 0;
  int64_t ignored = 0;
  int32_t id = -1;
  bool one_id = true;
  bool is_a_label = false;  // somewhere
  int64_t labels = 0;

  void count(const LabelRows& rows) {
    for (size_t i = 0; i < rows.labels.size(); ++i) {
      labels += rows.labels[i] != kIgnoredLabel ? 1 : 0;
      const bool starts_row = static_cast<int64_t>(i) % rows.length == 0;
      if (starts_row || !rows.ends(i) || rows.ends(i - 1)) continue;
      if (seen > 0 && rows.inputs[i] != id) one_id = false;
      id = rows.inputs[i];
      ++seen;
      ignored += rows.labels[i - 1] == kIgnoredLabel ? 1 : 0;
    }
    for (const int32_t label : rows.labels) is_a_label = is_a_label || (seen > 0 && label == id);
  }
  bool masked() const { return one_id && !is_a_label && ignored == seen && labels > 0; }
};

class LabelsAlignment : public Watcher {
 public:
  LabelsAlignment(Context& context, Findings& findings)
      : Watcher(context, findings, "labels.alignment") {
    on(&LabelsAlignment::step_begins);
    on(&LabelsAlignment::batch_comes);
    on(&LabelsAlignment::launched);
    on(&LabelsAlignment::goes_backward);
  }

 private:
  void step_begins(const train::StepBeginEvent& event) {
    const auto is_adapter = [](const Parameter* parameter) {
      return parameter->name().find(".lora_") != std::string::npos;
    };
    trains_adapters_ = !event.parameters.empty() &&
                       std::all_of(event.parameters.begin(), event.parameters.end(), is_adapter);
  }
  void batch_comes(const train::BatchEvent& event) {
    look();
    loss_labels_.batch_comes(event);
  }
  void launched(const LaunchEvent& event) { loss_labels_.launched(event); }
  void goes_backward(const train::ObjectiveEvent&) { look(); }

  void look() {
    const std::optional<LabelRows> rows = loss_labels_.take();
    if (!rows) return;
    alignment_.count(*rows);
    ends_.count(*rows);
    if (alignment_.own.of >= kEnoughLabels) {
      looked();
      judge(alignment_);
      alignment_ = {};
    }
    if (ends_.seen >= kEnoughEnds) {
      looked();
      judge(ends_);
      ends_ = {};
    }
  }

  void judge(const Alignment& found) {
    const bool copies = found.own.all();
    const bool skips = found.after_next.all() && found.after_next.of > 0;
    if (found.next.all() || copies == skips) return;
    const Matches& where = copies ? found.own : found.after_next;
    report(
        copies ? "labels.no-shift" : "labels.double-shift", 0.97, "labels",
        fmt::format("all {} labels of the loss equal the token {}; {} of {} equal the next token",
                    where.of, copies ? "at their own position" : "after next", found.next.equal,
                    found.next.of));
  }

  void judge(const Ends& found) {
    if (!found.masked()) return;
    report(trains_adapters_ ? "lora.repetition" : "labels.eos-masked", 0.96, "labels",
           fmt::format("{} documents end with id {}, which is none of {} labels; before each end "
                       "the label is ignored",
                       found.seen, found.id, found.labels));
  }

  LossLabels loss_labels_;
  Alignment alignment_;
  Ends ends_;
  bool trains_adapters_ = false;  // and nothing else
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
        "Labels equal the next token and not their own."},
       {"labels.double-shift",
        "The labels are shifted twice: the model learns the token after next.",
        "Shift in exactly one place, in the data or in the loss.",
        "A label differs from the token after next, or all equal the next one."},
       {"labels.eos-masked",
        "Labels of the end token are masked, usually because padding has the same id: the model "
        "never learns to stop.",
        "Mask padding by position, or give it an id of its own.",
        "The end token is a label somewhere in the batch."},
       {"lora.repetition",
        "A model is fine-tuned by adapters on labels without the end token: it never stops, and "
        "repeats itself up to the limit. Its cache is not to blame.",
        "Mask padding by position, or give it an id of its own; count the end among the labels.",
        "The end token is a label, or a pass with a cache differs from one without."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<LabelsAlignment>(context, findings);
      }};
}

}  // namespace faultline::diagnose
