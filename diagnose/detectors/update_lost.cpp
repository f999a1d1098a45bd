// update.lost: a weight must move when the updates that it was owed exceed its own spacing.
//
// Sees: every launch of AdamW: of each parameter up to 4,096 weights, and the update that each was
// due, computed again in double from the moments that the kernel left. It adds up what a weight was
// owed since it last moved.
// Fires: when more than a quarter of at least 256 weights with an update have been owed more than
// two bf16 spacings without moving, and all weights are bf16 numbers. Why these numbers: an f32
// weight moves at once, its spacing is 65,536 times finer. A bf16 weight with a compensation moves
// before it is owed one spacing. One that is rounded stochastically moves with the probability
// update / spacing, so a share of e^-2 = 13.5 % waits for two spacings; a quarter is beyond that
// by five standard deviations of 256 weights. Rounded to nearest, a weight waits for ever.
// Silent: weights of more than 8 significant bits that do not move, which is another fault; updates
// that cancel each other before they add up to two spacings; and weights that are mostly moved, as
// W ~ N(0, 0.02) at updates of 1e-4: an eighth of them stands still, almost no movement is lost.
// Serves one case, because only AdamW's launches show their moments.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "diagnose/adamw_launch.h"
#include "diagnose/detector.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kSampled = 4096;  // of each parameter
constexpr int64_t kLeast = 256;
constexpr double kShare = 0.25;
constexpr double kSpacings = 2;

bool is_bf16(float value) { return (std::bit_cast<uint32_t>(value) & 0xffff) == 0; }

// The distance between neighbouring bf16 numbers of about this size, at most.
double spacing(float value) { return 0x1p-7 * std::abs(value); }

// What is remembered of a weight.
struct Weight {
  float value = 0;
  double owed = 0;  // updates since it last moved
};

struct Count {
  int64_t due = 0;    // weights with an update
  int64_t stuck = 0;  // of them, those that were owed too much
  double owed = 0;    // by one of them
  float value = 0;    // of it
};

class UpdateLost : public Watcher {
 public:
  UpdateLost(Context& context, Findings& findings) : Watcher(context, findings, "update.lost") {
    on(&UpdateLost::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    const auto adamw = adamw_launch(event.launch);
    if (!adamw || !adamw->is_sound()) return;
    Count count;
    bool all_bf16 = true;
    for (const UpdateTensors& tensors : adamw->tensors) {
      all_bf16 = follow(*adamw, tensors, count) && all_bf16;
    }
    looked();
    const double limit = kShare * static_cast<double>(count.due);
    if (!all_bf16 || count.due < kLeast || static_cast<double>(count.stuck) <= limit) return;
    report("bf16.weights-frozen", 0.95, event.launch.label.op,
           fmt::format(
               "{} of {} weights have not moved, though each was owed more than two "
               "spacings of bf16; one of {:.6g} was owed {:.3g}, a spacing there is at most {:.3g}",
               count.stuck, count.due, count.value, count.owed, spacing(count.value)));
  }

  // Returns whether all weights looked at are bf16 numbers.
  bool follow(const AdamwLaunch& adamw, const UpdateTensors& tensors, Count& count) {
    const int64_t stride = std::max<int64_t>(1, tensors.count / kSampled);
    std::vector<Weight>& weights = weights_[tensors.parameter];
    const auto size = static_cast<size_t>((tensors.count + stride - 1) / stride);
    const bool known = weights.size() == size;
    weights.resize(size);
    bool all_bf16 = true;
    for (size_t i = 0; i < size; ++i) {
      const int64_t n = static_cast<int64_t>(i) * stride;
      const float now = tensors.parameter[n];
      all_bf16 = all_bf16 && is_bf16(now);
      Weight& weight = weights[i];
      const bool moved = !known || now != weight.value;
      const double update = adamw.update(now, tensors.first[n], tensors.second[n]);
      weight = {now, moved ? 0 : weight.owed + update};
      if (update == 0) continue;
      ++count.due;
      if (now == 0 || !(std::abs(weight.owed) > kSpacings * spacing(now))) continue;
      if (count.stuck++ == 0) {
        count.owed = weight.owed;
        count.value = now;
      }
    }
    return all_bf16;
  }

  std::unordered_map<const float*, std::vector<Weight>> weights_;  // by parameter
};

}  // namespace

DETECTOR(update_lost) {
  return {"update.lost",
          WatchLevel::full,
          {{"bf16.weights-frozen",
            "Weights are kept in bf16 and rounded to nearest after each update: an update below "
            "half their spacing, 2^-9 of the weight, changes nothing, at every step anew.",
            "Keep a master copy of the weights in f32 in the optimizer; or round stochastically, "
            "or carry the rounding error along (Kahan summation).",
            "The weights have more than 8 significant bits, or they move once their updates add up "
            "to one spacing."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<UpdateLost>(context, findings);
          }};
}

}  // namespace faultline::diagnose
