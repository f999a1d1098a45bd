// log.of-zero: a probability that underflowed to 0 must not meet a logarithm.
//
// Sees: every launch. Where a softmax wrote an exact 0, its output is followed through the ops that
// only move or pick values (slices and views share the memory), until something else is written
// there.
// Fires: when `log` reads an exact 0 from such memory. There is no threshold: a softmax is above 0
// in exact arithmetic, so its 0 is an underflow, and log(0) is -inf where log_softmax is finite.
// Silent: a 0 that does not come from a softmax, such as a count or a mask: finite.first tells the
// place; and masked_softmax, whose hidden keys have weight 0 by right and are no probabilities of a
// loss.
// It serves loss.log-zero alone: only there is the 0 finite, and gone by the next op.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

// Ops whose output holds values of an input, or sums of them and zeros.
bool hands_on(std::string_view op) {
  for (const char* const mover : {"where", "sum", "index_select", "contiguous", "copy", "clone",
                                  "cast", "cat", "amax", "mul"}) {
    if (op == mover) return true;
  }
  return false;
}

bool overlap(const ByteRange& a, const ByteRange& b) { return a.begin < b.end && b.begin < a.end; }

// The memory that holds probabilities, some of them 0, now.
class Probabilities {
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
    const bool reads =
        std::any_of(launch.args.inputs, launch.args.inputs + launch.args.input_count,
                    [&](const TensorView& view) { return probabilities_.hold(view); });
    if (reads && op == "log") judge(launch);
    for (const ByteRange& written : launch.writes()) probabilities_.forget(written);
    if (!forward) return;
    const bool underflow = op == "softmax" && has_zero(launch.args.outputs[0]);
    if (underflow || (reads && hands_on(op))) probabilities_.add(launch.args.outputs[0]);
  }

  bool has_zero(const TensorView& view) {
    looked();
    const std::vector<double> values = sample(view);
    return std::find(values.begin(), values.end(), 0.0) != values.end();
  }

  void judge(const Launch& launch) {
    const std::vector<double> values = sample(launch.args.inputs[0]);
    const auto zeros = std::count(values.begin(), values.end(), 0.0);
    if (zeros == 0) return;
    const auto first = std::find(values.begin(), values.end(), 0.0) - values.begin();
    report(
        "loss.log-zero", 0.97, "log",
        fmt::format("log read {} exact zeros among {} probabilities of a softmax, the first at "
                    "element {}, and wrote {}",
                    zeros, values.size(), first, read_values(launch.args.outputs[0], first, 1)[0]));
  }

  Probabilities probabilities_;
};

}  // namespace

DETECTOR(log_of_zero) {
  return {"log.of-zero",
          WatchLevel::full,
          {{"loss.log-zero",
            "The loss is the logarithm of a softmax. f32 has no exp below -103.97, so the "
            "probability of an unlikely label is 0, and its logarithm -inf.",
            "Compute the loss from the logits with log_softmax or cross_entropy.",
            "Every probability that the logarithm read is above 0."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<LogOfZero>(context, findings);
          }};
}

}  // namespace faultline::diagnose
