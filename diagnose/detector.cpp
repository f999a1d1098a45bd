#include "diagnose/detector.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"

namespace faultline::diagnose {

#define FAULTLINE_DETECTOR(stem) DETECTOR(stem);
#include "diagnose/detector_list.inc"
#undef FAULTLINE_DETECTOR

std::vector<DetectorDefinition> all_detectors() {
  return {
#define FAULTLINE_DETECTOR(stem) detector_##stem(),
#include "diagnose/detector_list.inc"
#undef FAULTLINE_DETECTOR
  };
}

namespace {
constexpr const char* kLevels[] = {"off", "light", "full", "deep"};
}  // namespace

WatchLevel watch_level_from_name(const std::string& text) {
  const auto* found = std::find(std::begin(kLevels), std::end(kLevels), text);
  require(found != std::end(kLevels), "watch: '{}' is no level; choose off, light, full or deep",
          text);
  return static_cast<WatchLevel>(found - std::begin(kLevels));
}

const char* name(WatchLevel level) { return kLevels[static_cast<int>(level)]; }

void Findings::report(Detection detection) {
  for (const Detection& known : detections_) {
    if (known.detector == detection.detector && known.cause == detection.cause) return;
  }
  detections_.push_back(std::move(detection));
}

std::vector<Detection> Findings::ranked() const {
  std::vector<Detection> result = detections_;
  std::stable_sort(result.begin(), result.end(), [](const Detection& a, const Detection& b) {
    return std::tuple(a.cause.empty(), -a.confidence, a.step) <
           std::tuple(b.cause.empty(), -b.confidence, b.step);
  });
  return result;
}

bool Findings::beyond_hints() const {
  return std::any_of(detections_.begin(), detections_.end(),
                     [](const Detection& detection) { return detection.confidence >= kHint; });
}

Watch::Watch(Context& context, WatchLevel level, std::vector<DetectorDefinition> detectors)
    : level_(level) {
  for (DetectorDefinition& detector : detectors) {
    Check& check = checks_.emplace_back(Check{std::move(detector), nullptr});
    if (level != WatchLevel::off && check.detector.level <= level) {
      check.watcher = check.detector.watch(context, findings_);
    }
  }
}

}  // namespace faultline::diagnose
