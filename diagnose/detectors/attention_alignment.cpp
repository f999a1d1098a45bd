// attention.alignment: causality counts from where the mask says that the queries stand.
//
// Sees: what attention shows (scores, weights, the mask's attributes), in calls with more keys than
// queries, where the alignment of a causal mask matters.
// Fires: as attn.causal-align, when the record places the first query behind key 0, every row read
// has the weights of a softmax that places it at key 0 (within ShownAttention::weight_bound, twice,
// since weights may differ by both roundings), and some row differs from the right one by more than
// that.
// Silent: calls whose record says 0 (that is cache.past's), square ones, where both agree, rows
// with NaN, and scores so large that rounding hides half of a weight. One row of one query at key 0
// is enough: it gives all weight to one key. It serves one case: the two conventions are what
// kernels really differ in.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"

namespace faultline::diagnose {
namespace {

// The softmax over what the mask allows but for its causality, and that as `visible` says.
template <class Visible>
std::vector<double> softmax_of(const AttentionRow& row, const ShownAttention& shown,
                               const Visible& visible) {
  std::vector<double> exponents = row.scores;
  for (size_t k = 0; k < exponents.size(); ++k) {
    const auto key = static_cast<int64_t>(k);
    if (!visible(key) || !shown.is_text(row.batch, key)) exponents[k] = -INFINITY;
  }
  return exact_softmax(exponents);
}

class AttentionAlignment : public Watcher {
 public:
  AttentionAlignment(Context& context, Findings& findings)
      : Watcher(context, findings, "attention.alignment") {
    on(&AttentionAlignment::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (found_ || !ShownAttention::is_shown_by(event.launch)) return;
    const ShownAttention shown(event.launch);
    if (shown.keys() <= shown.queries() || shown.query_offset() <= 0) return;
    looked();
    bool all = true;
    bool differs = false;
    for (const int64_t number : shown.rows_to_read(looks())) {
      const AttentionRow row = shown.row(number);
      if (!row.finite()) return;
      const WeightBound once = shown.weight_bound(row);
      if (!once.can_tell()) return;
      const WeightBound bound{2 * once.relative, 2 * once.absolute};
      const auto at_start = [&](int64_t key) { return key <= row.query; };
      const auto right = [&](int64_t key) { return shown.causality_allows(row.query, key); };
      all = all && same_weights(row.weights, softmax_of(row, shown, at_start), bound);
      differs = differs || !same_weights(row.weights, softmax_of(row, shown, right), bound);
    }
    if (!all || !differs) return;
    found_ = true;
    report("attn.causal-align", 0.98, "attention",
           fmt::format("{} queries and {} keys: the mask says that the first query stands at key "
                       "{}, and all rows read have the weights of one at key 0",
                       shown.queries(), shown.keys(), shown.query_offset()));
  }

  bool found_ = false;
};

}  // namespace

DETECTOR(attention_alignment) {
  return {"attention.alignment",
          WatchLevel::full,
          {{"attn.causal-align",
            "With more keys than queries the causal mask was laid to the top left: the first query "
            "saw key 0 alone, though it stands behind the cached keys.",
            "Say where the diagonal lies: bottom right with a cache (torch's causal_lower_right, "
            "or an explicit mask); there is no safe default when the sizes differ.",
            "Attention over the last queries alone equals the last rows of attention over all."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AttentionAlignment>(context, findings);
          }};
}

}  // namespace faultline::diagnose
