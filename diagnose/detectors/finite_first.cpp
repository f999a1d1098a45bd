// finite.first: the first launch, forward or backward, that writes a NaN or an infinity.
//
// Sees: every launch with its outputs and inputs.
// Fires: once, at the first floating output that is not finite. What comes after is a consequence.
// Two causes are certain, both softmax.overflow:
//   - a softmax with a non-finite output in a row whose scores were all finite;
//   - a finite value that became infinite in f16 (above 65504), when what it became goes into a
//     softmax next, through nothing but elementwise ops. Then a second line is reported.
// Anything else is reported without a cause: the place is certain, the reason is not.
// Silent: -inf written by an op that masks (fill, where, add, copies of them): that is how many
// programs say "not visible", and softmax turns it into an exact 0.
#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

bool may_write_minus_infinity(std::string_view op) {
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

bool is_softmax(const Launch& launch) {
  return std::string_view(launch.label.op).find("softmax") != std::string_view::npos &&
         launch.label.phase == Phase::forward;
}

// Whether the row of the first input that holds element `n` of the output is finite throughout.
bool row_is_finite(const TensorView& input, const TensorView& output, int64_t n) {
  if (!input.defined() || !(input.shape == output.shape) || input.shape.empty()) return false;
  const int64_t length = input.shape[-1];
  for (const double value : read_values(input, n / length * length, length)) {
    if (!std::isfinite(value)) return false;
  }
  return true;
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

class FiniteFirst : public Watcher {
 public:
  FiniteFirst(Context& context, Findings& findings) : Watcher(context, findings, "finite.first") {
    on(&FiniteFirst::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    if (found_) return follow(event.launch);
    const KernelArgs& args = event.launch.args;
    for (int i = 0; i < args.output_count; ++i) {
      looked();
      const int64_t at = first_non_finite(args.outputs[i]);
      if (at < 0) continue;
      const bool mask = may_write_minus_infinity(event.launch.label.op);
      if (mask && only_minus_infinity(args.outputs[i])) continue;
      found_ = true;
      judge(event.launch, i, at);
      return;
    }
  }

  void judge(const Launch& launch, int output, int64_t at) {
    const KernelArgs& args = launch.args;
    bool inputs_finite = true;
    for (int i = 0; i < args.input_count; ++i) {
      inputs_finite = inputs_finite && first_non_finite(args.inputs[i]) < 0;
    }
    const TensorView& result = args.outputs[output];
    const bool overflow = is_softmax(launch) && row_is_finite(args.inputs[0], result, at);
    const char* module = launch.label.module;
    const std::string evidence = fmt::format(
        "{} ({}{}{}, kernel {}) wrote {} at element {}; its inputs are {}", launch.label.op,
        name(launch.label.phase), *module != 0 ? ", in " : "", module, launch.kernel->name,
        written(result, at), at, inputs_finite ? "finite" : "not all finite");
    report(overflow ? "softmax.overflow" : "", overflow ? 0.95 : 0.6, launch.label.op, evidence);
    if (inputs_finite && result.dtype == DType::f16) {
      overflow_ = {byte_range(result), launch.label.op, evidence};
    }
  }

  // Follows values that overflowed f16 to their first reader that is not elementwise.
  void follow(const Launch& launch) {
    if (overflow_.op == nullptr || !reads(launch, overflow_.memory)) return;
    if (passes_on(launch.label.op)) {
      overflow_.memory = byte_range(launch.args.outputs[0]);
      return;
    }
    if (is_softmax(launch)) {
      report("softmax.overflow", 0.95, overflow_.op,
             fmt::format("{}; f16 ends at 65504, and {} reads what it wrote", overflow_.evidence,
                         launch.label.op));
    }
    overflow_ = {};
  }

  struct Overflow {
    ByteRange memory;          // where the infinities are now
    const char* op = nullptr;  // that wrote the first; null: none is followed
    std::string evidence;
  };

  bool found_ = false;
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
