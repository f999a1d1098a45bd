// attention.documents: in a packed batch no position attends to another document of its row.
//
// Sees: the documents of a micro-batch (BatchEvent), and in its forward pass what attention shows,
// or the mask that flash_attention is given.
// Fires: at the first weight that is not 0 between positions of different documents, where the mask
// that attention was told allows the key; without weights to look at, where that mask allows it.
// Attention was then told of no documents, or of others than the batch has: attn.packing-leak. A
// weight on a key that its own mask forbids is another matter (mask.visibility).
// Silent: without documents in the batch; for attention of another size than the batch, or from a
// cache; outside of a step (evaluation and probes do not say which batch they run); on rows with a
// NaN or an infinity (finite.first). Of large tensors a part of the rows is read, another part each
// time.
// It serves one case in the lab: every run that packs documents can lose its document mask.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"
#include "diagnose/values.h"
#include "kernels/visibility.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

// The mask that a launch of flash_attention is given.
class GivenMask {
 public:
  static bool is_given_to(const Launch& launch) {
    return std::string_view(launch.label.op) == "flash_attention" &&
           launch.label.phase == Phase::forward;
  }
  explicit GivenMask(const Launch& launch)
      : rule_(launch.args.attributes.as<FlashAttentionAttributes>().mask),
        batches_(launch.args.inputs[0].shape[0]),
        queries_(launch.args.inputs[0].shape[2]),
        keys_(launch.args.inputs[1].shape[2]),
        valid_(sample(launch.args.inputs[3])),
        documents_(sample(launch.args.inputs[4])) {}

  bool fits(int64_t batches, int64_t length) const {
    return batches_ == batches && keys_ == length && rule_.query_offset == 0;
  }
  int64_t queries() const { return queries_; }

  bool allows(int64_t batch, int64_t query, int64_t key) const {
    const auto at = [&](int64_t k) { return static_cast<size_t>(batch * keys_ + k); };
    return sees(rule_, query, key) && (valid_.empty() || valid_[at(key)] != 0) &&
           (documents_.empty() || documents_[at(key)] == documents_[at(query)]);
  }

 private:
  MaskAttributes rule_;
  int64_t batches_;
  int64_t queries_;
  int64_t keys_;
  std::vector<double> valid_;
  std::vector<double> documents_;
};

class AttentionDocuments : public Watcher {
 public:
  AttentionDocuments(Context& context, Findings& findings)
      : Watcher(context, findings, "attention.documents") {
    on(&AttentionDocuments::batch_comes);
    on(&AttentionDocuments::evaluation_begins);
    on(&AttentionDocuments::step_ends);
    on(&AttentionDocuments::launched);
  }

 private:
  static constexpr int64_t kPairsRead = int64_t{1} << 17;  // of a launch without weights

  void batch_comes(const train::BatchEvent& event) {
    if (found_ || !event.batch.documents.defined()) return forget();
    documents_ = event.batch.documents.to_vector<int32_t>();
    batches_ = event.batch.documents.size(0);
    length_ = event.batch.documents.size(1);
  }
  void evaluation_begins(const train::EvaluationBeginEvent&) { forget(); }
  void step_ends(const train::StepEndEvent&) { forget(); }
  void forget() { documents_.clear(); }

  void launched(const LaunchEvent& event) {
    if (documents_.empty() || found_) return;
    if (GivenMask::is_given_to(event.launch)) return read(event.launch, GivenMask(event.launch));
    if (!ShownAttention::is_shown_by(event.launch)) return;
    const ShownAttention shown(event.launch);
    if (shown.batches() != batches_ || shown.keys() != length_ || shown.query_offset() != 0) return;
    looked();
    AttentionRow row;
    for (const int64_t number : shown.rows_to_read(looks())) {
      shown.read_weights(number, row);
      if (!sees_another(row)) continue;
      shown.read(number, row);
      if (!row.finite() || !judge(event.launch, row)) continue;
      found_ = true;
      return;
    }
  }

  void read(const Launch& launch, const GivenMask& mask) {
    if (!mask.fits(batches_, length_)) return;
    looked();
    const int64_t rows = batches_ * mask.queries();
    const int64_t stride = std::max<int64_t>(1, rows * length_ / kPairsRead);
    for (int64_t row = looks() % stride; row < rows; row += stride) {
      const int64_t b = row / mask.queries();
      const int64_t q = row % mask.queries();
      for (int64_t k = 0; k < length_; ++k) {
        if (document(b, k) == document(b, q) || !mask.allows(b, q, k)) continue;
        found_ = true;
        return leaks(launch, launch.args.inputs[4].defined(),
                     fmt::format("batch {}, query {}, in document {} of the batch: the mask shows "
                                 "it key {}, in document {}",
                                 b, q, document(b, q), k, document(b, k)));
      }
    }
  }

  void leaks(const Launch& launch, bool told, const std::string& what) {
    report("attn.packing-leak", 0.97, "attention",
           fmt::format("{}{}{}; attention was told of {} documents", launch.label.module,
                       *launch.label.module != 0 ? ": " : "", what, told ? "other" : "no"));
  }

  int32_t document(int64_t batch, int64_t position) const {
    return documents_[static_cast<size_t>(batch * length_ + position)];
  }

  // Whether a key of another document has a weight.
  bool sees_another(const AttentionRow& row) const {
    const int32_t own = document(row.batch, row.query);
    const int32_t* const documents = &documents_[static_cast<size_t>(row.batch * length_)];
    for (size_t k = 0; k < row.weights.size(); ++k) {
      if (documents[k] != own && row.weights[k] != 0) return true;
    }
    return false;
  }

  // Whether the row leaks; the first key that does is reported.
  bool judge(const Launch& launch, const AttentionRow& row) {
    const int32_t own = document(row.batch, row.query);
    for (size_t k = 0; k < row.weights.size(); ++k) {
      const int32_t other = document(row.batch, static_cast<int64_t>(k));
      if (other == own || row.weights[k] == 0 || !row.allowed(k)) continue;
      leaks(
          launch, launch.args.inputs[3].defined(),
          fmt::format("{}, in document {} of the batch: key {}, in document {}, has weight {:.6g}",
                      row.place(), own, k, other, row.weights[k]));
      return true;
    }
    return false;
  }

  bool found_ = false;
  std::vector<int32_t> documents_;  // of the micro-batch that runs now; empty outside of one
  int64_t batches_ = 0;
  int64_t length_ = 0;
};

}  // namespace

DETECTOR(attention_documents) {
  return {"attention.documents",
          WatchLevel::full,
          {{"attn.packing-leak",
            "Several documents are packed into a row, and attention is not told where one ends: "
            "positions attend to the documents before their own.",
            "Give attention the document of each position and let a query see only keys of its "
            "own; new position numbers alone do not do it.",
            "With another text in the first document of a row, the outputs of the second do not "
            "move."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AttentionDocuments>(context, findings);
          }};
}

}  // namespace faultline::diagnose
