// mask.visibility: attention weights must be 0 exactly where the mask forbids, and only there.
//
// Sees: what attention shows: scores, weights, key_valid, documents, and the mask's attributes.
// Fires: at the first (batch, head, query, key) with
//   - a weight that is not 0 where the mask forbids the key, or
//   - a weight of exactly 0 on an allowed key, where the dtype of the weights has room for the one
//     that the scores give it (ShownAttention::weight_bound). Only where no score is so large that
//     a softmax which does not subtract the maximum loses keys (safe_score): that is not the mask.
// It then looks for the one wrong way to apply a mask that gives all weights it reads of this
// launch, within twice that bound, since what was added is computed from rounded weights too:
//   - hidden scores multiplied to 0: attn.mask-multiply;
//   - one number added to all hidden scores, or the mask on another axis or inverted (kSwapped):
//     attn.mask-broadcast. A row that sees nothing may hold zeros or, from a finite sentinel, equal
//     weights.
//   - scores as if there were no mask, a finite sentinel where a row may see nothing, or weights
//     that none of these explains: no cause. It then goes on looking, for scores that are all 0
//     give several of these the same weights.
// Silent: rows with a NaN or an infinity (finite.first says where those came from), and hidden
// weights that are 0 in rows which do not sum to 1 (attention.row-sums). Of large tensors a part of
// the rows is read, another part each time. Rows in which rounding could hide half of a weight say
// that something is wrong, not what.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"

namespace faultline::diagnose {
namespace {

// The exact softmax over the keys that the mask allows.
std::vector<double> allowed_softmax(const AttentionRow& row) {
  std::vector<double> exponents = row.scores;
  for (size_t k = 0; k < exponents.size(); ++k) {
    if (!row.allowed(k)) exponents[k] = -INFINITY;
  }
  return exact_softmax(exponents);
}

// Whether no score is so large that a softmax could lose its key without any mask.
bool is_safe(const AttentionRow& row, double limit) {
  return std::all_of(row.scores.begin(), row.scores.end(),
                     [&](double score) { return std::abs(score) <= limit; });
}

// What is wrong with a row, as the end of a sentence; "" where nothing is.
std::string violation(const AttentionRow& row, const ShownAttention& shown) {
  bool is_lost = false;  // a key that may be seen
  for (size_t k = 0; k < row.weights.size(); ++k) {
    is_lost = is_lost || (row.allowed(k) && row.weights[k] == 0);
    if (row.allowed(k) || row.weights[k] == 0) continue;
    return fmt::format("key {} has weight {:.6g} although {}", k, row.weights[k], row.forbids[k]);
  }
  if (!is_lost || !is_safe(row, shown.safe_score())) return "";
  const WeightBound bound = shown.weight_bound(row);
  const std::vector<double> exact = allowed_softmax(row);
  for (size_t k = 0; k < row.weights.size(); ++k) {
    const bool may_be_zero = exact[k] <= bound.relative * exact[k] + bound.absolute;
    if (row.weights[k] != 0 || may_be_zero) continue;
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
    {"attn.mask-broadcast", "as if {:.6g} were added to hidden scores",
     [](double s, bool allowed, double added) { return allowed ? s : s + added; }},
    {"", "right where anything may be seen, else equal, as a finite sentinel makes them",
     [](double s, bool allowed, double) { return allowed ? s : -INFINITY; }},
};

struct Place {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  int64_t key = 0;
};

// Whether all parts of the mask but the padding allow a key.
bool rest_allows(const ShownAttention& shown, const Place& at) {
  return shown.causality_allows(at.query, at.key) && shown.window_allows(at.query, at.key) &&
         shown.in_one_document(at.batch, at.query, at.key);
}

// The mask on another axis, which needs sizes that coincide, or with its meaning inverted.
struct Swapped {
  const char* what;
  bool (*fits)(const ShownAttention&);
  bool (*sees)(const ShownAttention&, const Place&);
};
constexpr Swapped kSwapped[] = {
    {"as if the mask hid the opposite", [](const ShownAttention&) { return true; },
     [](const ShownAttention& shown, const Place& at) {
       return !shown.allows(at.batch, at.query, at.key);
     }},
    {"as if the padding mask hid the text",
     [](const ShownAttention& shown) { return shown.is_padded(); },
     [](const ShownAttention& shown, const Place& at) {
       return rest_allows(shown, at) && !shown.is_text(at.batch, at.key);
     }},
    {"as if the padding mask [batch, key] were one of [query, key]",
     [](const ShownAttention& shown) {
       return shown.is_padded() && shown.batches() == shown.queries();
     },
     [](const ShownAttention& shown, const Place& at) {
       return rest_allows(shown, at) && shown.is_text(at.query, at.key);
     }},
    {"as if the padding mask [batch, key] were one of [batch, query]",
     [](const ShownAttention& shown) {
       return shown.is_padded() && shown.queries() == shown.keys();
     },
     [](const ShownAttention& shown, const Place& at) {
       return rest_allows(shown, at) && shown.is_text(at.batch, at.query);
     }},
    {"as if the mask [batch, query, key] were one of [head, query, key]",
     [](const ShownAttention& shown) { return shown.batches() == shown.heads(); },
     [](const ShownAttention& shown, const Place& at) {
       return shown.allows(at.head, at.query, at.key);
     }},
    {"as if the mask [query, key] were one of [key, query]",
     [](const ShownAttention& shown) { return shown.queries() == shown.keys(); },
     [](const ShownAttention& shown, const Place& at) {
       return shown.allows(at.batch, at.key, at.query);
     }},
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

bool all_equal(const std::vector<double>& values, const WeightBound& bound) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  return *greatest - *least <= bound.relative * *greatest + bound.absolute;
}

// Whether these exponents give the weights of a row.
bool give(const std::vector<double>& exponents, const AttentionRow& row, const WeightBound& bound) {
  // Where nothing counts, programs differ: zeros, or equal weights from a finite sentinel.
  const bool nothing = *std::max_element(exponents.begin(), exponents.end()) == -INFINITY;
  return (nothing && all_equal(row.weights, bound)) ||
         same_weights(row.weights, exact_softmax(exponents), bound);
}

std::vector<double> exponents_of(const Reading& reading, const AttentionRow& row, double added) {
  std::vector<double> exponents;
  for (size_t k = 0; k < row.scores.size(); ++k) {
    exponents.push_back(reading.exponent(row.scores[k], row.allowed(k), added));
  }
  return exponents;
}

std::vector<double> exponents_of(const Swapped& swapped, const AttentionRow& row,
                                 const ShownAttention& shown) {
  std::vector<double> exponents;
  for (size_t k = 0; k < row.scores.size(); ++k) {
    const Place at{row.batch, row.head, row.query, static_cast<int64_t>(k)};
    exponents.push_back(swapped.sees(shown, at) ? row.scores[k] : -INFINITY);
  }
  return exponents;
}

struct Explanation {
  const char* cause;
  double confidence;
  std::string what;
};

// Twice the bound of a row, for `added` is computed from weights that were rounded too.
WeightBound bound_of(const AttentionRow& row, const ShownAttention& shown) {
  const WeightBound once = shown.weight_bound(row);
  return {2 * once.relative, 2 * once.absolute};
}

// What explains all rows, each of them finite and able to tell; `first` is wrong.
Explanation explain(const AttentionRow& first, const std::vector<AttentionRow>& rows,
                    const ShownAttention& shown) {
  if (rows.empty()) return {"", 0.6, "scores are so large that rounding hides what made them"};
  const auto all_come_from = [&](const auto& exponents) {
    return std::all_of(rows.begin(), rows.end(), [&](const AttentionRow& row) {
      return give(exponents(row), row, bound_of(row, shown));
    });
  };
  const double added = added_to_hidden(first);
  for (const Reading& reading : kReadings) {
    if (!all_come_from([&](const auto& row) { return exponents_of(reading, row, added); })) {
      continue;
    }
    return {reading.cause, *reading.cause == 0 ? 0.6 : 0.97,
            "all rows read are " + fmt::format(fmt::runtime(reading.what), added)};
  }
  for (const Swapped& swapped : kSwapped) {
    if (!swapped.fits(shown)) continue;
    if (!all_come_from([&](const auto& row) { return exponents_of(swapped, row, shown); })) {
      continue;
    }
    return {"attn.mask-broadcast", 0.97, std::string("all rows read are ") + swapped.what};
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
    AttentionRow row;
    for (const int64_t number : shown.rows_to_read(looks())) {
      shown.read(number, row);
      if (!row.finite()) continue;
      const std::string what = violation(row, shown);
      if (what.empty()) continue;
      judge(event.launch.label.module, shown, row, what);
      return;
    }
  }

  void judge(const std::string& module, const ShownAttention& shown, const AttentionRow& first,
             const std::string& what) {
    std::vector<AttentionRow> rows;
    for (const int64_t number : shown.rows_to_read(looks())) {
      AttentionRow row = shown.row(number);
      if (row.finite() && bound_of(row, shown).can_tell()) rows.push_back(std::move(row));
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
