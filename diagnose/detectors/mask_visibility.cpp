// mask.visibility: attention weights must be 0 exactly where the mask forbids, and only there.
//
// Sees: what attention shows as the launch "attention": scores, weights, key_valid, documents, and
// the mask's attributes. The predicate is recomputed here from those, not taken from the program.
// Fires: at the first (batch, head, query, key) with
//   - a weight that is not 0 where the predicate forbids the key (a mask added as a number shows
//     so: it shifts weights and removes none), or
//   - a weight of exactly 0 on an allowed key whose scaled score is within 80 of the row's largest
//     allowed one. exp(-80) = 1.8e-35 is far above f32's smallest normal number, also after
//     division by a thousand keys, so such a weight cannot round to 0. Only where scores lie within
//     80 of 0: beyond, a softmax that does not subtract the maximum loses keys, and not the mask.
// Silent: rows with a NaN or an infinity (finite.first says where those came from). Of large
// tensors a part of the rows is read, another part each time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"

namespace faultline::diagnose {
namespace {

constexpr double kCannotUnderflow = 80;
constexpr int64_t kElementsRead = int64_t{1} << 17;

// The mask's predicate over (batch, query, key).
class Predicate {
 public:
  Predicate(const KernelArgs& args, const MaskAttributes& mask)
      : mask_(mask), keys_(args.inputs[0].shape[3]) {
    if (args.inputs[2].defined()) valid_ = sample(args.inputs[2]);
    if (args.inputs[3].defined()) documents_ = sample(args.inputs[3]);
  }

  // "" where the key may be seen, else the part of the mask that forbids it.
  const char* forbidden(int64_t b, int64_t q, int64_t k) const {
    const int64_t position = mask_.query_offset + q;
    if (mask_.causal && k > position) return "it lies in the future";
    if (!valid_.empty() && valid_[at(b, k)] == 0) return "it is padding";
    if (!documents_.empty() && documents_[at(b, k)] != documents_[at(b, position)]) {
      return "it belongs to another document";
    }
    return "";
  }

 private:
  size_t at(int64_t b, int64_t k) const { return static_cast<size_t>(b * keys_ + k); }

  MaskAttributes mask_;
  int64_t keys_;
  std::vector<double> valid_;
  std::vector<double> documents_;
};

// One row of scores and weights.
struct Row {
  std::vector<double> scores;
  std::vector<double> weights;

  bool finite() const {
    const auto is_finite = [](double x) { return std::isfinite(x); };
    return std::all_of(scores.begin(), scores.end(), is_finite) &&
           std::all_of(weights.begin(), weights.end(), is_finite);
  }
};

Row read_row(const KernelArgs& args, int64_t row) {
  const int64_t keys = args.inputs[1].shape[3];
  return {read_values(args.inputs[0], row * keys, keys),
          read_values(args.inputs[1], row * keys, keys)};
}

struct Violation {
  int64_t key = -1;
  std::string what;
};

Violation judge_row(const Row& row, const Predicate& predicate, double scale, int64_t b,
                    int64_t q) {
  double largest = -INFINITY;
  for (size_t k = 0; k < row.weights.size(); ++k) {
    const auto key = static_cast<int64_t>(k);
    const char* why = predicate.forbidden(b, q, key);
    if (*why == 0) {
      largest = std::max(largest, scale * row.scores[k]);
    } else if (row.weights[k] != 0) {
      return {key, fmt::format("has weight {:.6g} although {}", row.weights[k], why)};
    }
  }
  if (largest > kCannotUnderflow) return {};
  for (size_t k = 0; k < row.weights.size(); ++k) {
    const auto key = static_cast<int64_t>(k);
    const double score = scale * row.scores[k];
    const bool small = largest - score >= kCannotUnderflow || score <= -kCannotUnderflow;
    if (row.weights[k] != 0 || small || *predicate.forbidden(b, q, key) != 0) continue;
    return {key, "has weight 0 although it may be seen"};
  }
  return {};
}

class MaskVisibility : public Watcher {
 public:
  MaskVisibility(Context& context, Findings& findings)
      : Watcher(context, findings, "mask.visibility") {
    on(&MaskVisibility::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (found_ || std::strcmp(event.launch.label.op, "attention") != 0) return;
    looked();
    const KernelArgs& args = event.launch.args;
    const auto mask = args.attributes.as<MaskAttributes>();
    const Predicate predicate(args, mask);
    const Shape& shape = args.inputs[1].shape;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    const int64_t stride = std::max<int64_t>(1, rows * shape[3] / kElementsRead);
    for (int64_t row = looks() % stride; row < rows && !found_; row += stride) {
      const Row values = read_row(args, row);
      if (!values.finite()) continue;
      const int64_t b = row / (shape[1] * shape[2]);
      const int64_t q = row % shape[2];
      const Violation violation = judge_row(values, predicate, mask.scale, b, q);
      if (violation.key < 0) continue;
      found_ = true;
      const char* module = event.launch.label.module;
      report("attn.mask-broadcast", 0.96, "attention",
             fmt::format("{}{}batch {}, head {}, query {}: key {} {}", module,
                         *module != 0 ? ": " : "", b, row / shape[2] % shape[1], q, violation.key,
                         violation.what));
    }
  }

  bool found_ = false;
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
        "The weights are 0 exactly where the predicate of the mask forbids."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<MaskVisibility>(context, findings);
      }};
}

}  // namespace faultline::diagnose
