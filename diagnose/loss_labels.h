#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "core/launch.h"
#include "train/events.h"

namespace faultline::diagnose {

// The host's copy of a micro-batch: B rows of T tokens that the model is given, and the labels that
// its loss takes. Labels are kIgnoredLabel where there is none.
struct LabelRows {
  explicit LabelRows(const Batch& batch);

  // Whether token i has a neighbour so many places on in its row.
  bool has_neighbour(size_t i, int64_t distance) const {
    return static_cast<int64_t>(i) % length + distance < length;
  }
  // Whether a document is seen to end with the token at `i`: another one or padding follows.
  bool ends(size_t i) const;

  int64_t length;
  std::vector<int32_t> inputs;
  std::vector<int32_t> labels;
  std::vector<int32_t> documents;  // may be empty, as may be is_text
  std::vector<bool> is_text;
};

// Follows a micro-batch from its BatchEvent to its ObjectiveEvent, or to the next BatchEvent of a
// program that emits none. The labels are those that cross_entropy read on the way, in one launch
// or in several parts, and the batch's own where none was launched: a loss may shift what the batch
// holds, which is right if the batch's labels are the inputs, and wrong if they are shifted.
class LossLabels {
 public:
  void batch_comes(const train::BatchEvent& event);
  void launched(const LaunchEvent& event);
  // At the end of the micro-batch. A loss may leave out places at either end of a row: the first
  // that it takes is where its logits begin in those of all places. Nothing where no batch came,
  // where the labels that were read are no equal share of each row, and where they are fewer than
  // T of a row and the logits are not seen to come from those of all places.
  std::optional<LabelRows> take();

 private:
  // A launch, as far as rows can be followed through it.
  struct Made {
    TensorView output;
    TensorView from;
  };
  // The place in its row of the first of these logits.
  std::optional<int64_t> first_place(TensorView logits) const;

  std::optional<LabelRows> rows_;
  std::vector<int32_t> read_;  // by cross_entropy
  std::optional<int64_t> first_place_;
  std::deque<Made> made_;  // of late, before the loss
};

}  // namespace faultline::diagnose
