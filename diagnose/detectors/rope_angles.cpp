// rope.angles: the cosines and sines by which queries and keys are turned are those of their
// positions.
//
// Sees: RopeTablesEvent: the configuration of the rotary positions, the positions, and the tables
// that the model made of them.
// Fires: at the first table with a cosine or sine further from the exact one (angle in f64) than
// the bound of an angle in f32: four roundings of the angle, 4 x 2^-24 x angle, and two of a number
// of magnitude 1. Where all values are, within the same bound or rounded to bf16 themselves, those
// of angles whose position, frequency or product was rounded to bf16, the cause is rope.bf16; else
// no cause. Silent: on angles computed in f32, which is what most programs do; on tables of another
// shape than the positions (another detector's matter); on the scaling dynamic_ntk beyond its
// positions no less than on others, for the event says the length. It serves one case in the lab;
// every wrong frequency or position fails it, without a cause.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/float16.h"
#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "nn/rope.h"

namespace faultline::diagnose {
namespace {

double in_bf16(double x) { return static_cast<float>(bfloat16(static_cast<float>(x))); }

// Which of the three numbers of an angle were rounded to bf16.
struct Rounded {
  bool position;
  bool frequency;
  bool product;
};

double angle_of(double position, double frequency, const Rounded& rounded) {
  const double p = rounded.position ? in_bf16(position) : position;
  const double f = rounded.frequency ? in_bf16(frequency) : frequency;
  return rounded.product ? in_bf16(p * f) : p * f;
}

class RopeAngles : public Watcher {
 public:
  RopeAngles(Context& context, Findings& findings) : Watcher(context, findings, "rope.angles") {
    on(&RopeAngles::made);
  }

 private:
  static constexpr double kRound = 0x1p-24;

  struct Tables {
    std::vector<int32_t> positions;
    std::vector<double> frequencies;
    double magnitude;
    std::vector<double> cosines;
    std::vector<double> sines;
  };

  void made(const nn::RopeTablesEvent& event) {
    if (found_) return;
    const Tables tables{event.positions.to_vector<int32_t>(),
                        nn::rope_frequencies(event.config, event.head_size, event.length),
                        nn::rope_magnitude(event.config), event.tables.cosines.to_vector<double>(),
                        event.tables.sines.to_vector<double>()};
    const size_t count = tables.positions.size() * tables.frequencies.size();
    if (tables.cosines.size() != count || tables.sines.size() != count) return;
    looked();
    for (size_t i = 0; i < count; ++i) {
      if (is_near(tables, i, angle(tables, i, {}))) continue;
      found_ = true;
      return judge(tables, i);
    }
  }

  static double angle(const Tables& tables, size_t i, const Rounded& rounded) {
    const size_t pairs = tables.frequencies.size();
    return angle_of(tables.positions[i / pairs], tables.frequencies[i % pairs], rounded);
  }

  static double bound_of(const Tables& tables, double angle) {
    return tables.magnitude * (4 * kRound * std::abs(angle) + 2 * kRound);
  }

  static bool is_near(const Tables& tables, size_t i, double angle) {
    const double bound = bound_of(tables, angle);
    return std::abs(tables.cosines[i] - tables.magnitude * std::cos(angle)) <= bound &&
           std::abs(tables.sines[i] - tables.magnitude * std::sin(angle)) <= bound;
  }

  // The same where the table itself is in bf16.
  static bool is_near_in_bf16(const Tables& tables, size_t i, double angle) {
    return tables.cosines[i] == in_bf16(tables.magnitude * std::cos(angle)) &&
           tables.sines[i] == in_bf16(tables.magnitude * std::sin(angle));
  }

  static bool is_rounded(const Tables& tables, const Rounded& rounded) {
    for (size_t i = 0; i < tables.cosines.size(); ++i) {
      const double turned = angle(tables, i, rounded);
      if (!is_near(tables, i, turned) && !is_near_in_bf16(tables, i, turned)) return false;
    }
    return true;
  }

  void judge(const Tables& tables, size_t first) {
    bool rounded = false;
    for (const Rounded& r :
         {Rounded{true, true, true}, Rounded{false, true, true}, Rounded{true, true, false},
          Rounded{true, false, true}, Rounded{true, false, false}, Rounded{false, true, false},
          Rounded{false, false, true}}) {
      rounded = rounded || is_rounded(tables, r);
    }
    const size_t pair = first % tables.frequencies.size();
    const int32_t position = tables.positions[first / tables.frequencies.size()];
    report(rounded ? "rope.bf16" : "", rounded ? 0.97 : 0.8, "rope",
           fmt::format("position {}, pair {}: cosine {:.6f}, exact {:.6f}; {}", position, pair,
                       tables.cosines[first], tables.magnitude * std::cos(angle(tables, first, {})),
                       rounded ? "the table is that of angles rounded to bf16"
                               : "no rounding to bf16 explains it"));
  }

  bool found_ = false;
};

}  // namespace

DETECTOR(rope_angles) {
  return {"rope.angles",
          WatchLevel::full,
          {{"rope.bf16",
            "Positions or angles of the rotary embedding were computed in bf16, which has 8 bits: "
            "from 256 on neighbouring positions are the same number.",
            "Compute positions, frequencies and angles in f32 or f64, outside of autocast, and "
            "round only the turned queries and keys.",
            "The tables equal cosines and sines of exact angles to f32 rounding."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<RopeAngles>(context, findings);
          }};
}

}  // namespace faultline::diagnose
