// log.of-zero: a probability that underflowed to 0 must not meet a logarithm.
//
// Sees: every launch. Where a softmax, or the exp of one written by hand, made an exact 0 of finite
// inputs, its output is followed through the ops that move, pick, sum or scale values (slices and
// views share the memory), until something else is written there.
// Fires: when `log` reads an exact 0 from such memory. There is no threshold: exp is above 0 in
// exact arithmetic, so its 0 is an underflow, and log(0) is -inf where log_softmax is finite.
// Silent: a 0 that does not come from an exp, such as a count or a mask: finite.first tells the
// place; a 0 by right, as exp(-inf) has it and the hidden keys of masked_softmax; and a launch that
// overflowed too, which is another fault.
// It serves loss.log-zero alone: only there is the 0 finite, and gone by the next op.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

// Ops whose output holds values of an input, sums of them, or multiples.
bool hands_on(std::string_view op) {
  for (const char* const mover : {"where", "sum", "index_select", "contiguous", "copy", "clone",
                                  "cast", "cat", "amax", "mul", "div"}) {
    if (op == mover) return true;
  }
  return false;
}

bool overlap(const ByteRange& a, const ByteRange& b) { return a.begin < b.end && b.begin < a.end; }

// The memory that holds such values, some of them 0, now.
class Underflowed {
 public:
  bool hold(const TensorView& view) const {
    const ByteRange range = byte_range(view);
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const ByteRange& known) { return overlap(known, range); });
  }
  void add(const TensorView& view) { ranges_.push_back(byte_range(view)); }
  void forget(const ByteRange& written) {
    std::erase_if(ranges_, [&](const ByteRange& known) { return overlap(known, written); });
  }

 private:
  std::vector<ByteRange> ranges_;
};

class LogOfZero : public Watcher {
 public:
  LogOfZero(Context& context, Findings& findings) : Watcher(context, findings, "log.of-zero") {
    on(&LogOfZero::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    const std::string_view op = launch.label.op;
    const bool forward = launch.label.phase == Phase::forward;
    const bool reads = std::any_of(launch.args.inputs, launch.args.inputs + launch.args.input_count,
                                   [&](const TensorView& view) { return underflowed_.hold(view); });
    if (reads && op == "log") judge(launch);
    for (const ByteRange& written : launch.writes()) underflowed_.forget(written);
    if (!forward) return;
    const bool exponential = op == "softmax" || op == "exp";
    const bool underflow = exponential && underflows(launch.args.inputs[0], launch.args.outputs[0]);
    if (underflow || (reads && hands_on(op))) underflowed_.add(launch.args.outputs[0]);
  }

  // Whether a finite x gave 0, and nothing gave an infinity or NaN.
  bool underflows(const TensorView& x, const TensorView& y) {
    looked();
    const std::vector<double> values = sample(y);
    if (std::find(values.begin(), values.end(), 0.0) == values.end()) return false;
    const std::vector<double> from = sample(x);
    bool found = false;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) return false;
      found = found || (values[i] == 0 && std::isfinite(from[i]));
    }
    return found;
  }

  void judge(const Launch& launch) {
    const std::vector<double> values = sample(launch.args.inputs[0]);
    const auto zeros = std::count(values.begin(), values.end(), 0.0);
    if (zeros == 0) return;
    const auto first = std::find(values.begin(), values.end(), 0.0) - values.begin();
    report(
        "loss.log-zero", 0.97, "log",
        fmt::format("log read {} exact zeros among {} values of a softmax or exp that underflowed, "
                    "the first at element {}, and wrote {}",
                    zeros, values.size(), first, read_values(launch.args.outputs[0], first, 1)[0]));
  }

  Underflowed underflowed_;
};

}  // namespace

DETECTOR(log_of_zero) {
  return {
      "log.of-zero",
      WatchLevel::full,
      {{"loss.log-zero",
        "The loss is the logarithm of a softmax, or of what a softmax by hand sums. f32 has no exp below -103.97, so the "
        "probability of an unlikely label is 0, and its logarithm -inf.",
        "Compute the loss from the logits with log_softmax or cross_entropy.",
        "Every value that the logarithm read is above 0."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<LogOfZero>(context, findings);
      }};
}

}  // namespace faultline::diagnose
