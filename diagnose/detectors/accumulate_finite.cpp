// accumulate.finite: finite gradients must add up to a finite gradient.
//
// Sees: GradientEvent, each contribution to a leaf and what the leaf holds after it.
// Fires: when a leaf that held finite numbers, or nothing, holds one that is not finite after a
// contribution whose element there is finite and below 1e38. In f32 that sum stays below 3.4e38, so
// it is the accumulator that has too small a range: fp16 ends at 65504.
// Silent: a contribution that is not finite itself. It came so from the backward pass, and what it
// poisons is a consequence. A leaf that was not finite before; one seen from its middle.
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "autograd/tape.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

constexpr double kLargest = 1e38;

class AccumulateFinite : public Watcher {
 public:
  AccumulateFinite(Context& context, Findings& findings)
      : Watcher(context, findings, "accumulate.finite") {
    on(&AccumulateFinite::joined);
  }

 private:
  void joined(const GradientEvent& event) {
    looked();
    const int64_t at = first_non_finite(event.gradient.view());
    bool& finite = finite_[event.leaf.autograd().get()];
    const bool was_finite = event.first || finite;
    finite = at < 0;
    if (finite || !was_finite) return;
    const double added = read_values(event.contribution.view(), at, 1)[0];
    if (!(std::abs(added) < kLargest)) return;
    report("bf16.accumulate", 0.97, "accumulate",
           fmt::format("{}: adding the finite {:.6g} left {} at element {} of its {} gradient",
                       event.name.empty() ? "a leaf" : event.name, added,
                       read_values(event.gradient.view(), at, 1)[0], at,
                       faultline::name(event.gradient.dtype())));
  }

  std::unordered_map<const AutogradMeta*, bool> finite_;  // by leaf, after its last contribution
};

}  // namespace

DETECTOR(accumulate_finite) {
  return {"accumulate.finite",
          WatchLevel::full,
          {{"bf16.accumulate",
            "Gradients are summed in a type of too small a range: fp16 ends at 65504, and one "
            "infinity makes the norm infinite and every clipped gradient NaN.",
            "Accumulate gradients in f32. Where a 16-bit sum must be, check the whole window and "
            "skip and clear all of it.",
            "The contribution was not finite when it arrived: then look in the backward pass."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AccumulateFinite>(context, findings);
          }};
}

}  // namespace faultline::diagnose
