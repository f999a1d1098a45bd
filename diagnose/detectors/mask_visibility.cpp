// mask.visibility: attention weights must be 0 exactly where the mask forbids, and only there.
//
// Sees: what attention shows: scores, weights, key_valid, documents, and the mask's attributes.
// Fires: at the first (batch, head, query, key) with
//   - a weight that is not 0 where the mask forbids the key, or
//   - a weight of exactly 0 on an allowed key whose scaled score is within 80 of the row's largest
//     allowed one. exp(-80) = 1.8e-35 is far above f32's smallest normal number, also after
//     division by a thousand keys, so such a weight cannot round to 0. Only where scores lie within
//     80 of 0: beyond, a softmax that does not subtract the maximum loses keys, and not the mask.
// It then looks for the one wrong way to apply a mask that gives all weights it reads of this
// launch, within the bound of their rounding (ShownAttention::weight_bound):
//   - hidden scores multiplied to 0: attn.mask-multiply;
//   - one number added to all hidden scores, or a mask that hides the opposite, or a softmax over
//     other keys than the allowed ones (a mask on another axis): attn.mask-broadcast. A row in
//     which everything was replaced by one finite sentinel has equal weights; that is accepted.
//   - scores as if there were no mask, or weights that none of these explains: no cause. It then
//     goes on looking, for scores that are all 0 give several of these the same weights.
// Silent: rows with a NaN or an infinity (finite.first says where those came from), and hidden
// weights that are 0 in rows which do not sum to 1 (attention.row-sums). Of large tensors a part of
// the rows is read, another part each time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"

namespace faultline::diagnose {
namespace {

constexpr double kCannotUnderflow = 80;

// What is wrong with a row, as the end of a sentence; "" where nothing is.
std::string violation(const AttentionRow& row) {
  double largest = -INFINITY;
  for (size_t k = 0; k < row.weights.size(); ++k) {
    if (row.allowed(k)) {
      largest = std::max(largest, row.scores[k]);
    } else if (row.weights[k] != 0) {
      return fmt::format("key {} has weight {:.6g} although {}", k, row.weights[k], row.forbids[k]);
    }
  }
  if (largest > kCannotUnderflow) return "";
  for (size_t k = 0; k < row.weights.size(); ++k) {
    const double score = row.scores[k];
    const bool small = largest - score >= kCannotUnderflow || score <= -kCannotUnderflow;
    if (row.weights[k] != 0 || small || !row.allowed(k)) continue;
    return fmt::format("key {} has weight 0 although it may be seen", k);
  }
  return "";
}

// A wrong way to apply a mask: what a key counts in the softmax, -infinity being not at all.
// `added` is what hidden scores got more than visible ones.
struct Reading {
  const char* cause;
  const char* what;
  double (*exponent)(double score, bool allowed, double added);
};
constexpr Reading kReadings[] = {
    {"", "as if there were no mask", [](double s, bool, double) { return s; }},
    {"attn.mask-multiply", "as if hidden scores were multiplied to 0",
     [](double s, bool allowed, double) { return allowed ? s : 0; }},
    {"attn.mask-broadcast", "as if the mask hid the opposite",
     [](double s, bool allowed, double) { return allowed ? -INFINITY : s; }},
    {"attn.mask-broadcast", "as if {:.6g} were added to hidden scores",
     [](double s, bool allowed, double added) { return allowed ? s : s + added; }},
};

// What hidden scores got more than visible ones in this row, if it was one number; else NaN.
double added_to_hidden(const AttentionRow& row) {
  double hidden = NAN;
  double visible = NAN;
  for (size_t k = 0; k < row.weights.size(); ++k) {
    if (row.weights[k] == 0) continue;
    (row.allowed(k) ? visible : hidden) = std::log(row.weights[k]) - row.scores[k];
  }
  return hidden - visible;
}

bool all_equal(const std::vector<double>& values, double relative_bound) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  return *greatest - *least <= relative_bound * *greatest;
}

bool explains(const Reading& reading, const AttentionRow& row, double added, double bound) {
  std::vector<double> exponents;
  for (size_t k = 0; k < row.scores.size(); ++k) {
    exponents.push_back(reading.exponent(row.scores[k], row.allowed(k), added));
  }
  // Where nothing counts, programs differ: zeros, or equal weights from a finite sentinel.
  const bool nothing = *std::max_element(exponents.begin(), exponents.end()) == -INFINITY;
  return (nothing && all_equal(row.weights, bound)) ||
         same_weights(row.weights, exact_softmax(exponents), bound);
}

// Whether a row is the softmax over some keys, whichever they are: those that have weight.
bool is_softmax_over_some(const AttentionRow& row, double bound) {
  std::vector<double> exponents;
  for (size_t k = 0; k < row.scores.size(); ++k) {
    exponents.push_back(row.weights[k] != 0 ? row.scores[k] : -INFINITY);
  }
  return all_equal(row.weights, bound) ||
         same_weights(row.weights, exact_softmax(exponents), bound);
}

struct Explanation {
  const char* cause;
  double confidence;
  std::string what;
};

// What explains all rows, each of them finite; `first` is wrong.
Explanation explain(const AttentionRow& first, const std::vector<AttentionRow>& rows,
                    const ShownAttention& shown) {
  const auto all_are = [&](const auto& is_so) {
    return std::all_of(rows.begin(), rows.end(), [&](const AttentionRow& row) {
      // Twice, since `added` was computed from weights that were rounded too.
      return is_so(row, 2 * shown.weight_bound(row));
    });
  };
  const double added = added_to_hidden(first);
  for (const Reading& reading : kReadings) {
    const bool holds = all_are([&](const AttentionRow& row, double bound) {
      return explains(reading, row, added, bound);
    });
    if (!holds) continue;
    return {reading.cause, *reading.cause == 0 ? 0.6 : 0.97,
            "all rows read are " + fmt::format(fmt::runtime(reading.what), added)};
  }
  if (all_are(is_softmax_over_some)) {
    return {"attn.mask-broadcast", 0.96, "each row read is a softmax, over other keys"};
  }
  return {"", 0.6, "no known way to apply a mask gives these weights"};
}

class MaskVisibility : public Watcher {
 public:
  MaskVisibility(Context& context, Findings& findings)
      : Watcher(context, findings, "mask.visibility") {
    on(&MaskVisibility::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (explained_ || !ShownAttention::is_shown_by(event.launch)) return;
    looked();
    const ShownAttention shown(event.launch);
    for (const int64_t number : shown.rows_to_read(looks())) {
      const AttentionRow row = shown.row(number);
      if (!row.finite()) continue;
      const std::string what = violation(row);
      if (what.empty()) continue;
      judge(event.launch.label.module, shown, row, what);
      return;
    }
  }

  void judge(const std::string& module, const ShownAttention& shown, const AttentionRow& first,
             const std::string& what) {
    std::vector<AttentionRow> rows;
    for (const int64_t number : shown.rows_to_read(looks())) {
      if (AttentionRow row = shown.row(number); row.finite()) rows.push_back(std::move(row));
    }
    const Explanation found = explain(first, rows, shown);
    explained_ = *found.cause != 0;
    report(found.cause, found.confidence, "attention",
           fmt::format("{}{}{}: {}; {}", module, module.empty() ? "" : ": ", first.place(), what,
                       found.what));
  }

  bool explained_ = false;
};

}  // namespace

DETECTOR(mask_visibility) {
  return {
      "mask.visibility",
      WatchLevel::full,
      {{"attn.mask-broadcast",
        "The attention mask met the scores on another axis, inverted, or as an addend: keys that "
        "the mask forbids have weight, or visible ones have none.",
        "Build the mask as a predicate over (batch, query, key), and apply it to the scores "
        "before softmax as a condition, not as a number.",
        "The weights are 0 exactly where the predicate of the mask forbids."},
       {"attn.mask-multiply",
        "The mask multiplied the scores before softmax: a hidden key counts as a score of 0, "
        "and exp(0) = 1 is no zero weight.",
        "Apply the mask to the scores before softmax as a condition, or add -infinity where it "
        "hides.",
        "Some hidden key has another weight than a score of 0 gives it."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<MaskVisibility>(context, findings);
      }};
}

}  // namespace faultline::diagnose
