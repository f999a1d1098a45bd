// attention.row-sums: the weights of a query sum to 1, or are all 0 where it sees nothing.
//
// Sees: what attention shows, before dropout.
// Fires: at the first row whose weights sum to something else than 1, by more than their rounding
// allows (ShownAttention::sum_bound), and are not all 0. When all rows of this launch are the
// softmax over all keys with the hidden ones set to 0 afterwards, the mask multiplied the weights:
// attn.mask-multiply. Otherwise the sum is wrong and nobody knows why: no cause.
// Silent: rows with a NaN or an infinity (finite.first), rows of zeros, and hidden keys that have
// weight in rows that sum to 1 (mask.visibility).
// It serves one case in the lab; whatever computes attention by hand can fail this sum.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"

namespace faultline::diagnose {
namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Whether weights sum to something else than 1; sums that are not finite do.
bool is_off(const AttentionRow& row, double bound) {
  return !(std::abs(sum_of(row.weights) - 1) <= bound);
}

bool is_wrong(const AttentionRow& row, double bound) {
  const bool empty = std::all_of(row.weights.begin(), row.weights.end(),
                                 [](double weight) { return weight == 0; });
  return row.finite() && !empty && is_off(row, bound);
}

// softmax over all keys, hidden ones set to 0 afterwards.
bool is_multiplied_afterwards(const AttentionRow& row, const WeightBound& bound) {
  std::vector<double> exact = exact_softmax(row.scores);
  for (size_t k = 0; k < exact.size(); ++k) {
    if (!row.allowed(k)) exact[k] = 0;
  }
  return same_weights(row.weights, exact, bound);
}

class AttentionRowSums : public Watcher {
 public:
  AttentionRowSums(Context& context, Findings& findings)
      : Watcher(context, findings, "attention.row-sums") {
    on(&AttentionRowSums::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (found_ || !ShownAttention::is_shown_by(event.launch)) return;
    looked();
    const ShownAttention shown(event.launch);
    AttentionRow row;
    for (const int64_t number : shown.rows_to_read(looks())) {
      shown.read_weights(number, row);
      if (!is_off(row, shown.sum_bound())) continue;
      shown.read(number, row);
      if (!is_wrong(row, shown.sum_bound())) continue;
      found_ = true;
      judge(event.launch.label.module, shown, row);
      return;
    }
  }

  void judge(const std::string& module, const ShownAttention& shown, const AttentionRow& first) {
    bool multiplied = true;
    for (const int64_t number : shown.rows_to_read(looks())) {
      const AttentionRow row = shown.row(number);
      if (!row.finite()) continue;
      multiplied = multiplied && is_multiplied_afterwards(row, shown.weight_bound(row));
    }
    report(multiplied ? "attn.mask-multiply" : "", multiplied ? 0.97 : 0.6, "attention",
           fmt::format("{}{}{}: weights sum to {:.6g}, not 1; {}", module,
                       module.empty() ? "" : ": ", first.place(), sum_of(first.weights),
                       multiplied ? "all rows read are the softmax over all keys, with the hidden "
                                    "ones set to 0 afterwards"
                                  : "they are not those of a mask multiplied afterwards"));
  }

  bool found_ = false;
};

}  // namespace

DETECTOR(attention_row_sums) {
  return {"attention.row-sums",
          WatchLevel::full,
          {{"attn.mask-multiply",
            "The mask multiplied the weights after softmax: hidden keys kept their share of the "
            "denominator, so what is left sums to less than 1 and depends on the future.",
            "Apply the mask to the scores before softmax as a condition, or add -infinity where "
            "it hides.",
            "Every row of weights sums to 1 before dropout."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AttentionRowSums>(context, findings);
          }};
}

}  // namespace faultline::diagnose
