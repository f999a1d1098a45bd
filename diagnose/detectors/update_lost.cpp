// update.lost: a weight must move when the updates that it was owed exceed its own spacing.
//
// Sees: every launch of AdamW: of each parameter up to 4,096 weights, and the update that each was
// due, computed again in double from the moments that the kernel left. It adds up what a weight was
// owed since it last moved, and judges each parameter by itself.
// Fires: when more than a quarter of a parameter's weights with an update have been owed more than
// two bf16 spacings (more, where it has few weights) without moving, and it is kept in bf16. Why
// these numbers: an f32 weight moves at once, its spacing is 65,536 times finer. A bf16 weight with
// a compensation moves before it is owed one spacing. One that is rounded stochastically moves with
// the probability update / spacing, so k spacings pass it by with the probability e^-k. That m of n
// do at once, where m is a quarter of n, is less likely than one in a million from k = 2 + 14 / m
// on: 16 for a single weight, 2.2 for 256. Rounded to nearest, a weight waits for ever.
// A parameter is kept in bf16 when all its weights are bf16 numbers and one of them is no power of
// two; where they are powers of two only, such as gains of 1, all of the launch must be so.
// Silent: weights of more than 8 significant bits that do not move, which is another fault; updates
// that cancel each other before they add up to two spacings; and weights that are mostly moved, as
// W ~ N(0, 0.02) at updates of 1e-4: an eighth of them stands still, almost no movement is lost.
// Serves one case, because only AdamW's launches show their moments.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "diagnose/adamw_launch.h"
#include "diagnose/detector.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kSampled = 4096;  // of each parameter
constexpr double kShare = 0.25;
constexpr double kSpacings = 2;
constexpr double kSpacingsOfOne = 14;  // more, for a single weight

// The distance between neighbouring bf16 numbers of about this size, at most.
double spacing(float value) { return 0x1p-7 * std::abs(value); }

// What is remembered of a weight.
struct Weight {
  float value = 0;
  double owed = 0;  // updates since it last moved

  // In spacings. 0 moves at any update.
  double owed_spacings() const { return value == 0 ? 0 : std::abs(owed) / spacing(value); }
};

// What the values of weights say about the type that they are kept in.
struct Precision {
  bool all_bf16 = true;
  bool any_telling = false;  // one that is no power of two: others are numbers of every type

  void add(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    all_bf16 = all_bf16 && (bits & 0xffff) == 0;
    any_telling = any_telling || (bits & 0x7fffff) != 0;
  }
  void add(const Precision& other) {
    all_bf16 = all_bf16 && other.all_bf16;
    any_telling = any_telling || other.any_telling;
  }
  bool is_bf16() const { return all_bf16 && any_telling; }
};

// A parameter, as a launch left it.
struct Followed {
  Precision precision;
  std::vector<const Weight*> due;  // its weights with an update
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
    looked();
    std::vector<Followed> parameters;
    Precision launch;
    for (const UpdateTensors& tensors : adamw->tensors) {
      parameters.push_back(follow(*adamw, tensors));
      launch.add(parameters.back().precision);
    }
    for (const Followed& parameter : parameters) {
      const bool is_bf16 =
          parameter.precision.is_bf16() || (parameter.precision.all_bf16 && launch.is_bf16());
      if (is_bf16) judge(event.launch, parameter.due);
    }
  }

  Followed follow(const AdamwLaunch& adamw, const UpdateTensors& tensors) {
    const int64_t stride = std::max<int64_t>(1, tensors.count / kSampled);
    std::vector<Weight>& weights = weights_[tensors.parameter];
    const auto size = static_cast<size_t>((tensors.count + stride - 1) / stride);
    const bool known = weights.size() == size;
    weights.resize(size);
    Followed followed;
    for (size_t i = 0; i < size; ++i) {
      const int64_t n = static_cast<int64_t>(i) * stride;
      const float now = tensors.parameter[n];
      Weight& weight = weights[i];
      const bool moved = !known || now != weight.value;
      const double update = adamw.update(now, tensors.first[n], tensors.second[n]);
      weight = {now, moved ? 0 : weight.owed + update};
      followed.precision.add(now);
      if (update != 0) followed.due.push_back(&weight);
    }
    return followed;
  }

  void judge(const Launch& launch, const std::vector<const Weight*>& due) {
    const size_t least = static_cast<size_t>(kShare * static_cast<double>(due.size())) + 1;
    const double spacings = kSpacings + kSpacingsOfOne / static_cast<double>(least);
    std::vector<const Weight*> stuck;
    std::copy_if(due.begin(), due.end(), std::back_inserter(stuck),
                 [&](const Weight* weight) { return weight->owed_spacings() > spacings; });
    if (stuck.size() < least) return;
    const Weight& first = *stuck.front();
    report("bf16.weights-frozen", 0.95, launch.label.op,
           fmt::format("{} of {} weights of a parameter have not moved, though each was owed more "
                       "than {:.3g} spacings of bf16; one of {:.6g} was owed {:.3g}, a spacing "
                       "there is at most {:.3g}",
                       stuck.size(), due.size(), spacings, first.value, first.owed,
                       spacing(first.value)));
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
