// accumulate.absorbed: a gradient contribution that is not 0 must move the gradient that it joins.
//
// Sees: GradientEvent, each contribution and what the leaf holds after it. Keeps a double sum of
// the same contributions beside it; of large leaves only every n-th element. Fires: when of all
// contributions to a leaf more than 1 % left their element unchanged AND its elements together fall
// short of their sums, or exceed them, by more than 1e-3 of the summed magnitudes, or two roundings
// of its dtype where that is more, and by more than chance would have it.
// Why these numbers: in f32 an addend is absorbed only below 2^-25 of the sum, so a lot of them may
// be absorbed harmlessly: n additions err by at most n 2^-24 of the magnitudes, which passes 1e-3
// after 16,000 of them. A bf16 sum that is compensated (Kahan) absorbs an addend, owes it and pays
// it later: it is never off by more than one rounding, 2^-8, and what it owes; two are 7.8e-3. A
// sum that has stopped passes that soon. The magnitudes, not the sum, are the measure, so that
// cancellation alarms nobody.
// Chance: a sum that is rounded stochastically absorbs most small addends too, and is off by as
// much, above at one element and below at another. So errors are added with their sign, and may
// reach 5 standard deviations of such a sum: rounding an addend a to a spacing s has a variance of
// at most |a| s. A leaf of 4,096 elements is judged by what it lost; one of few elements must have
// lost more, a single element in bf16 a fifth of what it holds.
// Silent: on a leaf that holds an infinity or a NaN, which nothing moves any more; and on one whose
// elements lose as much as others gain.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "autograd/tape.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kSampled = 4096;
constexpr double kAbsorbedShare = 0.01;
constexpr double kRelativeError = 1e-3;
constexpr double kRoundings = 2;
constexpr double kDeviations = 5;

// What was added to a leaf since its gradient was last cleared.
struct Shadow {
  std::vector<double> sum;
  std::vector<double> magnitude;
  std::vector<double> held;
  double variance = 0;  // of the sum of all elements, at most, were it rounded stochastically
  int64_t addends = 0;
  int64_t absorbed = 0;
};

std::vector<double> magnitudes(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

class AccumulateAbsorbed : public Watcher {
 public:
  AccumulateAbsorbed(Context& context, Findings& findings)
      : Watcher(context, findings, "accumulate.absorbed") {
    on(&AccumulateAbsorbed::joined);
  }

 private:
  void joined(const GradientEvent& event) {
    const int64_t stride = std::max<int64_t>(1, event.gradient.numel() / kSampled);
    Shadow& shadow = shadows_[event.leaf.autograd().get()];
    const std::vector<double> added = sample(event.contribution.view(), stride);
    const std::vector<double> held = sample(event.gradient.view(), stride);
    if (!event.first && shadow.held.size() != held.size()) {
      // Watched from here on: what it holds is the first contribution.
      shadow = {held, magnitudes(held), held, 0, 0, 0};
      return;
    }
    if (event.first) shadow = {};
    shadow.sum.resize(added.size());
    shadow.magnitude.resize(added.size());
    const double spacing = 2 * unit_roundoff(event.gradient.dtype());  // of numbers about 1
    for (size_t i = 0; i < added.size(); ++i) {
      shadow.sum[i] += added[i];
      shadow.magnitude[i] += std::abs(added[i]);
      if (added[i] == 0 || event.first) continue;
      ++shadow.addends;
      shadow.variance +=
          std::abs(added[i]) * spacing * std::max(std::abs(held[i]), std::abs(shadow.held[i]));
      shadow.absorbed += held[i] == shadow.held[i] ? 1 : 0;
    }
    shadow.held = held;
    if (event.first) return;
    looked();
    judge(event, shadow);
  }

  void judge(const GradientEvent& event, const Shadow& shadow) {
    const auto absorbed = static_cast<double>(shadow.absorbed);
    if (absorbed <= kAbsorbedShare * static_cast<double>(shadow.addends)) return;
    double error = 0;  // positive: the sums are larger than what is held
    double magnitude = 0;
    for (size_t i = 0; i < shadow.sum.size(); ++i) {
      error += std::copysign(1, shadow.sum[i]) * (shadow.sum[i] - shadow.held[i]);
      magnitude += shadow.magnitude[i];
    }
    const double limit =
        std::max(kRelativeError, kRoundings * unit_roundoff(event.gradient.dtype()));
    const double chance = kDeviations * std::sqrt(shadow.variance);
    if (!std::isfinite(error) || std::abs(error) <= limit * magnitude + chance) return;
    report("bf16.accumulate", 0.95, "accumulate",
           fmt::format("{}: {} of {} additions to its {} gradient changed nothing; it is off by "
                       "{:.2g} of what was added",
                       event.name.empty() ? "a leaf" : event.name, shadow.absorbed, shadow.addends,
                       faultline::name(event.gradient.dtype()), std::abs(error) / magnitude));
  }

  std::unordered_map<const AutogradMeta*, Shadow> shadows_;  // by leaf; names may repeat
};

}  // namespace

DETECTOR(accumulate_absorbed) {
  return {"accumulate.absorbed",
          WatchLevel::full,
          {{"bf16.accumulate",
            "Gradients are summed in a type with too few bits: an addend below half an ulp of the "
            "sum changes nothing, and the sum stops growing.",
            "Accumulate gradients in f32, whatever the dtype of the forward pass.",
            "The held gradient agrees with a double sum of the same contributions."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AccumulateAbsorbed>(context, findings);
          }};
}

}  // namespace faultline::diagnose
