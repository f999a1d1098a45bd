#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"

// Observers that judge. A detector sees events, tensors and configuration, and never which case runs
// or what was planted.
namespace faultline::diagnose {

// How much is watched: each level adds to the one before. `light` costs host-side events only,
// `full` reads tensors, `deep` also runs the model again.
enum class WatchLevel : uint8_t { off, light, full, deep };
WatchLevel watch_level_from_name(const std::string& text);
const char* name(WatchLevel level);

// What a detector knows of a cause that it can name.
struct Cause {
  const char* id;         // of the fault, for example "adamw.step-counter"
  const char* mechanism;  // one or two sentences
  const char* fix;
  const char* refuted_by;  // what would show that it is something else
};

struct Detection {
  std::string detector;
  std::string cause;  // a fault id
  double confidence = 0;  // 1: proof by construction; below 0.5: a hint
  int64_t step = 0;       // the first
  int rank = 0;
  std::string op;
  std::string evidence;  // numbers, one line
};

// Where a detector reports. The first detection of each cause by each detector is kept.
class Findings {
 public:
  void report(Detection detection);
  // Best first: by confidence, then by step.
  std::vector<Detection> ranked() const;
  bool empty() const { return detections_.empty(); }

 private:
  std::vector<Detection> detections_;
};

// A detector's subscriptions, alive as long as the object.
class Watcher {
 public:
  virtual ~Watcher() = default;
};

struct DetectorDefinition {
  const char* name;  // "counter.advances"
  WatchLevel level;  // the lowest at which it works
  std::vector<Cause> causes;
  // Subscribes to `context`; reports to `findings`, which outlives the watcher.
  std::function<std::unique_ptr<Watcher>(Context& context, Findings& findings)> watch;
};

// Ours, one file each in diagnose/detectors/.
const std::vector<DetectorDefinition>& all_detectors();

// All given detectors up to `level` watching one Context.
class Watch {
 public:
  Watch(Context& context, WatchLevel level,
        const std::vector<DetectorDefinition>& detectors = all_detectors());
  const Findings& findings() const { return findings_; }

 private:
  Findings findings_;
  std::vector<std::unique_ptr<Watcher>> watchers_;
};

}  // namespace faultline::diagnose
