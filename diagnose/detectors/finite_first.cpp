// finite.first: the first launch, forward or backward, that writes a NaN or an infinity.
//
// Sees: every launch with its outputs and inputs.
// Fires: once, at the first floating output that is not finite; what comes after is a consequence.
// The place is certain, the reason is not: no cause. Two causes are certain, both
// softmax.overflow, and are looked for also after an infinity that somebody meant:
//   - a row of softmax whose visible scores are all finite and whose output is not, where the
//     largest score m exceeds ln(largest number of the dtype) - ln(visible scores), in f32 88.72 -
//     ln n: without the maximum subtracted exp(m) or the sum leaves the dtype. Below that something
//     else is wrong with the softmax. -inf is no score, it says "not visible".
//   - a finite value that became infinite in f16 (above 65504), when a softmax over attention
//     scores reads what it became, through nothing but elementwise ops, and makes a NaN of a row
//     that holds +inf. log_softmax is not followed: what it reads are logits.
// Silent: -inf written by an op that masks (fill, where, add, copies of them): that is how many
// programs say "not visible", and softmax turns it into an exact 0. The log-sum-exp that
// flash_attention keeps is -inf where a row sees no key.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/shown_attention.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

bool may_write_minus_infinity(std::string_view op, int output) {
  if (op == "flash_attention") return output == 1;
  for (const char* const mask : {"fill", "full", "where", "add", "copy", "clone", "contiguous",
                                 "cast", "cat", "index_select", "affine"}) {
    if (op == mask) return true;
  }
  return false;
}

bool only_minus_infinity(const TensorView& view) {
  for (const double value : sample(view)) {
    if (std::isnan(value) || (std::isinf(value) && value > 0)) return false;
  }
  return true;
}

// A row of a softmax: what it may see, scaled, -inf left out, and what it wrote.
struct SoftmaxRow {
  int64_t number = 0;
  std::vector<double> visible;
  std::vector<double> written;

  bool sees_finite() const { return all_finite(visible) && !visible.empty(); }
  bool wrote_finite() const { return all_finite(written); }
  double largest() const { return *std::max_element(visible.begin(), visible.end()); }

 private:
  static bool all_finite(const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
  }
};

bool is_softmax_of_scores(const Launch& launch) {
  const std::string_view op = launch.label.op;
  return launch.label.phase == Phase::forward && (op == "softmax" || op == "masked_softmax");
}
bool is_softmax(const Launch& launch) {
  const bool is_log = std::string_view(launch.label.op) == "log_softmax";
  return is_softmax_of_scores(launch) || (is_log && launch.label.phase == Phase::forward);
}

SoftmaxRow plain_row(const Launch& launch, int64_t number) {
  const int64_t length = launch.args.outputs[0].shape[-1];
  SoftmaxRow row{number, read_values(launch.args.inputs[0], number * length, length),
                 read_values(launch.args.outputs[0], number * length, length)};
  std::erase(row.visible, -INFINITY);
  return row;
}

SoftmaxRow masked_row(const ShownAttention& shown, int64_t number) {
  AttentionRow attention = shown.row(number);
  SoftmaxRow row{number, {}, std::move(attention.weights)};
  for (size_t k = 0; k < attention.scores.size(); ++k) {
    if (attention.allowed(k)) row.visible.push_back(attention.scores[k]);
  }
  std::erase(row.visible, -INFINITY);
  return row;
}

// The first row for which `is_so`.
template <class Predicate>
std::optional<SoftmaxRow> first_row(const Launch& launch, Predicate is_so) {
  const Shape& shape = launch.args.outputs[0].shape;
  const std::optional<ShownAttention> shown = ShownAttention::is_masked_softmax(launch)
                                                  ? std::optional<ShownAttention>(launch)
                                                  : std::nullopt;
  const int64_t rows = shape.empty() ? 0 : launch.args.outputs[0].numel() / shape[-1];
  for (int64_t number = 0; number < rows; ++number) {
    SoftmaxRow row = shown ? masked_row(*shown, number) : plain_row(launch, number);
    if (is_so(row)) return row;
  }
  return std::nullopt;
}

// A finite row from which exp or the sum of all, as they stand, leave the dtype.
std::optional<SoftmaxRow> overflowing_row(const Launch& launch) {
  if (!is_softmax(launch)) return std::nullopt;
  const double limit = std::log(largest_finite(launch.args.outputs[0].dtype));
  return first_row(launch, [&](const SoftmaxRow& row) {
    return !row.wrote_finite() && row.sees_finite() &&
           row.largest() > limit - std::log(static_cast<double>(row.visible.size()));
  });
}

// A row that holds +inf and became NaN.
bool has_infinite_row(const Launch& launch) {
  return first_row(launch,
                   [](const SoftmaxRow& row) {
                     return !row.visible.empty() && row.largest() == INFINITY &&
                            !row.wrote_finite();
                   })
      .has_value();
}

// Whether the launch gives each element of its output from the same element of an input.
bool passes_on(std::string_view op) {
  for (const char* const elementwise :
       {"cast", "affine", "mul", "div", "add", "sub", "where", "copy", "contiguous"}) {
    if (op == elementwise) return true;
  }
  return false;
}

bool reads(const Launch& launch, const ByteRange& memory) {
  for (int i = 0; i < launch.args.input_count; ++i) {
    if (launch.args.inputs[i].data == nullptr) continue;
    const ByteRange input = byte_range(launch.args.inputs[i]);
    if (input.begin < memory.end && memory.begin < input.end) return true;
  }
  return false;
}

std::string written(const TensorView& view, int64_t n) {
  const double value = read_values(view, n, 1)[0];
  return std::isnan(value) ? "NaN" : fmt::format("{}", value);
}

bool all_inputs_finite(const KernelArgs& args) {
  for (int i = 0; i < args.input_count; ++i) {
    if (first_non_finite(args.inputs[i]) >= 0) return false;
  }
  return true;
}

class FiniteFirst : public Watcher {
 public:
  FiniteFirst(Context& context, Findings& findings) : Watcher(context, findings, "finite.first") {
    on(&FiniteFirst::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (named_) return;
    follow(event.launch);
    const KernelArgs& args = event.launch.args;
    for (int i = 0; i < args.output_count && !named_; ++i) {
      looked();
      const int64_t at = first_non_finite(args.outputs[i]);
      if (at < 0) continue;
      const bool mask = may_write_minus_infinity(event.launch.label.op, i);
      if (mask && only_minus_infinity(args.outputs[i])) continue;
      judge(event.launch, args.outputs[i], at);
      return;
    }
  }

  void judge(const Launch& launch, const TensorView& result, int64_t at) {
    if (const auto row = overflowing_row(launch)) {
      name_overflow(launch.label.op,
                    fmt::format("{}; row {} has {} scores, all finite, the largest {:.6g}",
                                what_wrote(launch, result, at), row->number, row->visible.size(),
                                row->largest()));
      return;
    }
    const bool is_f16 = result.dtype == DType::f16;
    const bool from_finite = (is_f16 || !found_) && all_inputs_finite(launch.args);
    if (is_f16 && from_finite) {
      overflow_ = {byte_range(result), launch.label.op, what_wrote(launch, result, at)};
    }
    if (found_) return;
    found_ = true;
    report("", 0.6, launch.label.op,
           fmt::format("{}; its inputs are {}", what_wrote(launch, result, at),
                       from_finite ? "finite" : "not all finite"));
  }

  static std::string what_wrote(const Launch& launch, const TensorView& result, int64_t at) {
    const char* module = launch.label.module;
    return fmt::format("{} ({}{}{}, kernel {}) wrote {} at element {}", launch.label.op,
                       name(launch.label.phase), *module != 0 ? ", in " : "", module,
                       launch.kernel->name, written(result, at), at);
  }

  // Follows values that overflowed f16 to their first reader that is not elementwise.
  void follow(const Launch& launch) {
    if (overflow_.op == nullptr || !reads(launch, overflow_.memory)) return;
    if (passes_on(launch.label.op)) {
      overflow_.memory = byte_range(launch.args.outputs[0]);
      return;
    }
    if (is_softmax_of_scores(launch) && has_infinite_row(launch)) {
      name_overflow(overflow_.op, fmt::format("{}; f16 ends at 65504, and {} reads what it wrote",
                                              overflow_.evidence, launch.label.op));
    }
    overflow_ = {};
  }

  void name_overflow(const char* op, std::string evidence) {
    named_ = true;
    report("softmax.overflow", 0.95, op, std::move(evidence));
  }

  struct Overflow {
    ByteRange memory;          // where the infinities are now
    const char* op = nullptr;  // that wrote the first; null: none is followed
    std::string evidence;
  };

  bool found_ = false;  // reported without a cause
  bool named_ = false;  // reported with one
  Overflow overflow_;
};

}  // namespace

DETECTOR(finite_first) {
  return {"finite.first",
          WatchLevel::full,
          {{"softmax.overflow",
            "Scores leave a float's range at the softmax: exp overflows f32 above 88.72 where the "
            "row's maximum is not subtracted first, and f16 ends at 65504, before a scale of "
            "1 / sqrt(d) has made the scores small.",
            "Subtract the row's maximum before exp, and scale queries and keys before their "
            "products are rounded to 16 bits.",
            "The infinity came from elsewhere: the values before it were not finite."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<FiniteFirst>(context, findings);
          }};
}

}  // namespace faultline::diagnose
