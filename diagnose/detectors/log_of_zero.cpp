// log.of-zero: a probability that underflowed to 0 must not meet a logarithm.
//
// Sees: every launch. Where a softmax, or the exp of one written by hand, made an exact 0 of finite
// inputs, its output is followed through the ops that move, pick, sum or scale values (slices and
// views share the memory), until something else is written there or the memory is somebody else's.
// When `log` reads an exact 0 from such memory, what it wrote is followed in turn, through whatever
// keeps an infinity or a NaN of it.
// Fires: when that reaches a sum, a mean or the root of a backward pass, or makes a NaN in one.
// There is no threshold: exp is above 0 in exact arithmetic, so its 0 is an underflow, and log(0)
// is -inf where log_softmax is finite.
// Silent: a -inf that is thrown away, as where(p > 0, p * log(p), 0) does for an entropy that is
// only looked at; a 0 that does not come from an exp, such as a count or a mask: finite.first tells
// the place; a 0 by right, as exp(-inf) has it and the hidden keys of masked_softmax; and a launch
// that overflowed too, which is another fault. Memory that the host fills in place is not told from
// what it held before.
// It serves loss.log-zero alone: only there is the 0 finite, and gone by the next op.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "autograd/tape.h"
#include "core/context.h"
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

// Whether numbers that the op reads cannot be thrown away after it.
bool adds_up(const Launch& launch) {
  const std::string_view op = launch.label.op;
  return launch.label.phase == Phase::backward || op == "sum" || op == "mean";
}

bool overlap(const ByteRange& a, const ByteRange& b) { return a.begin < b.end && b.begin < a.end; }

// The op that asked for the block that holds an address now; "" where it is released.
std::string asked_for(const std::byte* address) {
  for (const LiveBlock& block : Context::current().allocator->live()) {
    if (block.data <= address && address < block.data + block.bytes) return block.tag.op;
  }
  return "";
}

// Memory that holds certain values now, as far as launches tell.
class FollowedMemory {
 public:
  void add(const TensorView& view) { parts_.push_back({byte_range(view), asked_for(view.data)}); }
  void forget(const ByteRange& written) {
    std::erase_if(parts_, [&](const Part& part) { return overlap(part.range, written); });
  }
  bool holds(const TensorView& view) const { return find(view) != parts_.end(); }
  bool is_read_by(const Launch& launch) const {
    const TensorView* const inputs = launch.args.inputs;
    return !parts_.empty() && std::any_of(inputs, inputs + launch.args.input_count,
                                          [&](const TensorView& view) { return holds(view); });
  }
  // As above, and no memory that was released and taken for something else.
  bool still_holds(const TensorView& view) const {
    const auto part = find(view);
    return part != parts_.end() && asked_for(view.data) == part->asked_for;
  }

 private:
  struct Part {
    ByteRange range;
    std::string asked_for;
  };
  std::vector<Part>::const_iterator find(const TensorView& view) const {
    const ByteRange range = byte_range(view);
    return std::find_if(parts_.begin(), parts_.end(),
                        [&](const Part& part) { return overlap(part.range, range); });
  }

  std::vector<Part> parts_;
};

class LogOfZero : public Watcher {
 public:
  LogOfZero(Context& context, Findings& findings) : Watcher(context, findings, "log.of-zero") {
    on(&LogOfZero::launched);
    on(&LogOfZero::goes_backward);
  }

 private:
  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    const std::string_view op = launch.label.op;
    const bool reads_zeros = zeros_.is_read_by(launch);
    const bool reads_zero_log = reads_zeros && op == "log" && takes_log_of_zero(launch);
    const bool keeps_infinity =
        infinities_.is_read_by(launch) && first_non_finite(launch.args.outputs[0]) >= 0;
    for (const ByteRange& written : launch.writes()) {
      zeros_.forget(written);
      infinities_.forget(written);
    }
    if (keeps_infinity && adds_up(launch)) name_it(op);
    if (launch.label.phase != Phase::forward) return;
    const TensorView& output = launch.args.outputs[0];
    if (reads_zero_log || keeps_infinity) infinities_.add(output);
    const bool exponential = op == "softmax" || op == "exp";
    const bool underflow = exponential && underflows(launch.args.inputs[0], output);
    if (underflow || (reads_zeros && hands_on(op))) zeros_.add(output);
  }

  void goes_backward(const BackwardEvent& event) {
    const TensorView root = event.root.view();
    if (infinities_.holds(root) && first_non_finite(root) >= 0) name_it("backward");
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

  bool takes_log_of_zero(const Launch& launch) {
    const std::vector<double> values = sample(launch.args.inputs[0]);
    const auto zeros = std::count(values.begin(), values.end(), 0.0);
    if (zeros == 0 || !zeros_.still_holds(launch.args.inputs[0])) return false;
    const auto first = std::find(values.begin(), values.end(), 0.0) - values.begin();
    log_ = fmt::format(
        "log read {} exact zeros among {} values of a softmax or exp that underflowed, "
        "the first at element {}, and wrote {}",
        zeros, values.size(), first, read_values(launch.args.outputs[0], first, 1)[0]);
    return true;
  }

  void name_it(std::string_view reader) {
    report("loss.log-zero", 0.97, "log", fmt::format("{}; it reached {}", log_, reader));
  }

  FollowedMemory zeros_;
  FollowedMemory infinities_;
  std::string log_;  // what the last log of a 0 read and wrote
};

}  // namespace

DETECTOR(log_of_zero) {
  return {
      "log.of-zero",
      WatchLevel::full,
      {{"loss.log-zero",
        "The loss is the logarithm of a softmax, or of what a softmax by hand sums. f32 has no exp "
        "below -103.97, so the probability of an unlikely label is 0, and its logarithm -inf.",
        "Compute the loss from the logits with log_softmax or cross_entropy.",
        "Every value that the logarithm read is above 0."}},
      [](Context& context, Findings& findings) {
        return std::make_unique<LogOfZero>(context, findings);
      }};
}

}  // namespace faultline::diagnose
