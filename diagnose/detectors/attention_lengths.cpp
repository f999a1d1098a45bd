// attention.lengths: the lengths and pages that attention over variable lengths is given stay
// within the memory, and within the text.
//
// Sees: launches of "attention_varlen" with the tokens of all texts behind each other and the ends
// of their queries and keys; launches of "attention_paged" with the pool, the table of pages and
// the lengths; and the documents of a micro-batch (BatchEvent).
// Fires: varlen.overrun where
//   - ends do not begin with 0, go down, or do not end with the number of tokens;
//   - in a micro-batch, whose rows lie behind each other, a text has a key of another row or
//     document than its first query;
//   - as many keys as queries are attended to causally, and their ends differ: a text then has
//     fewer keys than queries, or another's;
//   - a row has more keys than its pages have slots, or one of its pages is not in the pool.
// All of it is arithmetic with what the kernel was given, before anything is read.
// Silent: on pages that two rows share, which a common beginning explains; on attention that is not
// causal and has other texts as keys; on lengths that are right.
// It serves one case in the lab with four variants.
#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

using Ends = std::vector<int64_t>;

std::vector<int64_t> integers(const TensorView& view) {
  const std::vector<double> values = sample(view);
  return {values.begin(), values.end()};
}

// What is wrong with ends of texts that have `tokens` tokens together.
std::optional<std::string> why_wrong(const Ends& ends, int64_t tokens, const char* what) {
  if (ends.empty() || ends.front() != 0) return fmt::format("the ends of the {} begin late", what);
  for (size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] >= ends[i - 1]) continue;
    return fmt::format("the ends of the {} go down from {} to {} at text {}", what, ends[i - 1],
                       ends[i], i - 1);
  }
  if (ends.back() == tokens) return std::nullopt;
  return fmt::format("the ends of the {} end with {}, but there are {}: text {} {}", what,
                     ends.back(), tokens, ends.size() - 2,
                     ends.back() > tokens ? "reads what lies behind" : "leaves some out");
}

class AttentionLengths : public Watcher {
 public:
  AttentionLengths(Context& context, Findings& findings)
      : Watcher(context, findings, "attention.lengths") {
    on(&AttentionLengths::batch_comes);
    on(&AttentionLengths::evaluation_begins);
    on(&AttentionLengths::step_ends);
    on(&AttentionLengths::launched);
  }

 private:
  void batch_comes(const train::BatchEvent& event) {
    forget();
    if (found_ || !event.batch.documents.defined()) return;
    documents_ = event.batch.documents.to_vector<int32_t>();
    length_ = event.batch.documents.size(1);
  }
  void evaluation_begins(const train::EvaluationBeginEvent&) { forget(); }
  void step_ends(const train::StepEndEvent&) { forget(); }
  void forget() { documents_.clear(); }

  void launched(const LaunchEvent& event) {
    if (found_) return;
    const std::string_view op = event.launch.label.op;
    if (op == "attention_varlen") judge(event.launch, why_wrong_ends(event.launch));
    if (op == "attention_paged") judge(event.launch, why_wrong_pages(event.launch));
  }

  void judge(const Launch& launch, const std::optional<std::string>& why) {
    looked();
    if (!why) return;
    found_ = true;
    report("varlen.overrun", 0.99, launch.label.op,
           fmt::format("{}{}{}", launch.label.module, *launch.label.module != 0 ? ": " : "", *why));
  }

  std::optional<std::string> why_wrong_ends(const Launch& launch) const {
    const KernelArgs& args = launch.args;
    const int64_t queries = args.inputs[0].shape[0];
    const int64_t keys = args.inputs[1].shape[0];
    const Ends ends_q = integers(args.inputs[3]);
    const Ends ends_k = integers(args.inputs[4]);
    if (auto why = why_wrong(ends_q, queries, "queries")) return why;
    if (auto why = why_wrong(ends_k, keys, "keys")) return why;
    if (queries != keys || ends_q.size() != ends_k.size()) return std::nullopt;
    if (keys == static_cast<int64_t>(documents_.size())) return why_another_text(ends_q, ends_k);
    if (!args.attributes.as<MaskAttributes>().causal) return std::nullopt;
    for (size_t i = 1; i < ends_q.size(); ++i) {
      if (ends_q[i] == ends_k[i]) continue;
      return fmt::format("text {} ends at query {} and at key {} of the same tokens", i - 1,
                         ends_q[i], ends_k[i]);
    }
    return std::nullopt;
  }

  bool same_text(int64_t a, int64_t b) const {
    return a / length_ == b / length_ &&
           documents_[static_cast<size_t>(a)] == documents_[static_cast<size_t>(b)];
  }

  std::optional<std::string> why_another_text(const Ends& ends_q, const Ends& ends_k) const {
    for (size_t i = 0; i + 1 < ends_q.size(); ++i) {
      if (ends_q[i] == ends_q[i + 1]) continue;
      for (int64_t key = ends_k[i]; key < ends_k[i + 1]; ++key) {
        if (same_text(ends_q[i], key)) continue;
        return fmt::format(
            "text {} has the queries from {} to {} and the keys from {} to {}; key {} is of row "
            "{}, document {}",
            i, ends_q[i], ends_q[i + 1] - 1, ends_k[i], ends_k[i + 1] - 1, key, key / length_,
            documents_[static_cast<size_t>(key)]);
      }
    }
    return std::nullopt;
  }

  static std::optional<std::string> why_wrong_pages(const Launch& launch) {
    const TensorView& pool = launch.args.inputs[1];
    if (pool.shape.rank() != 4 || launch.args.inputs[3].shape.rank() != 2) return std::nullopt;
    const int64_t pages = pool.shape[0];
    const int64_t slots = pool.shape[1];
    const int64_t columns = launch.args.inputs[3].shape[1];
    const std::vector<int64_t> table = integers(launch.args.inputs[3]);
    const std::vector<int64_t> lengths = integers(launch.args.inputs[4]);
    for (size_t row = 0; row < lengths.size(); ++row) {
      if (lengths[row] < 0 || lengths[row] > columns * slots) {
        return fmt::format("row {} has {} keys, but its {} pages of {} hold {}", row, lengths[row],
                           columns, slots, columns * slots);
      }
      for (int64_t i = 0; i * slots < lengths[row]; ++i) {
        const size_t entry = row * static_cast<size_t>(columns) + static_cast<size_t>(i);
        if (entry >= table.size()) return fmt::format("row {} has no pages in the table", row);
        const int64_t page = table[entry];
        if (page >= 0 && page < pages) continue;
        return fmt::format("row {} reads page {}, but the pool has {}", row, page, pages);
      }
    }
    return std::nullopt;
  }

  bool found_ = false;
  std::vector<int32_t> documents_;  // of the micro-batch that runs now; empty outside of one
  int64_t length_ = 1;              // of its rows
};

}  // namespace

DETECTOR(attention_lengths) {
  return {"attention.lengths",
          WatchLevel::full,
          {{"varlen.overrun",
            "The lengths or pages that a kernel was given reach beyond its memory or its text, and "
            "it reads what lies there.",
            "Compare ends with the number of tokens and the texts' own lengths, and lengths with "
            "what the pages hold, before the launch; round page counts up.",
            "Every text reads its own tokens, and no address lies outside of what was allocated."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AttentionLengths>(context, findings);
          }};
}

}  // namespace faultline::diagnose
