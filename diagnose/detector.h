#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"

// Observers that judge. A detector sees events, tensors and configuration, and never which case
// runs or what was planted.
namespace faultline::diagnose {

// How much is watched: each level adds to the one before. `light` reads what a program announces
// (ids, labels, losses, gradients at the start of a step) and what an evaluation is given; `full`
// reads what launches read and write, and all gradients; `deep` also runs the model again.
enum class WatchLevel : uint8_t { off, light, full, deep };
// Throws InvalidArgument that lists the names.
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
  std::string cause;      // a fault id; "" where something is wrong and no known fault explains it
  double confidence = 0;  // 1: proof by construction; below kHint: a hint
  int64_t step = 0;       // the first
  int rank = 0;
  std::string op;
  std::string evidence;  // numbers, one line
};

// A detection below this confidence is a hint: it makes a run "undecided", not faulty.
constexpr double kHint = 0.5;

// Where a detector reports. The first detection of each cause by each detector is kept.
class Findings {
 public:
  void report(Detection detection);
  // Best first: named causes before the rest, by confidence, then by step.
  std::vector<Detection> ranked() const;
  // Whether any of them is more than a hint.
  bool beyond_hints() const;
  bool empty() const { return detections_.empty(); }

 private:
  std::vector<Detection> detections_;
};

// A detector at work on one Context: its subscriptions and what it remembers.
class Watcher {
 public:
  virtual ~Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  // How many times it had something to judge. A check that never looked has not said "healthy".
  int64_t looks() const { return looks_; }

 protected:
  Watcher(Context& context, Findings& findings, const char* detector)
      : context_(context), findings_(findings), detector_(detector) {}

  // Calls `handler` of the derived class for every E.
  template <class E, class Derived>
  void on(void (Derived::*handler)(const E&)) {
    subscriptions_.push_back(
        context_.events.subscribe<E>([self = static_cast<Derived*>(this), handler](const E& event) {
          (self->*handler)(event);
        }));
  }
  void looked() { ++looks_; }
  // The step that runs now, from 1; 0 outside of one.
  int64_t step() const { return context_.step < 0 ? 0 : context_.step; }
  void report(const char* cause, double confidence, const std::string& op, std::string evidence) {
    findings_.report({detector_, cause, confidence, step(), 0, op, std::move(evidence)});
  }

 private:
  Context& context_;
  Findings& findings_;
  const char* detector_;
  int64_t looks_ = 0;
  std::vector<EventBus::Subscription> subscriptions_;
};

struct DetectorDefinition {
  const char* name;  // "counter.advances"
  WatchLevel level;  // the lowest at which it works
  std::vector<Cause> causes;
  // Subscribes to `context`; reports to `findings`. Both outlive the watcher.
  std::function<std::unique_ptr<Watcher>(Context& context, Findings& findings)> watch;
};

// Defines the detector of diagnose/detectors/<stem>.cpp: DETECTOR(stem) { return {...}; }
#define DETECTOR(stem) ::faultline::diagnose::DetectorDefinition detector_##stem()

// Ours, one file each in diagnose/detectors/, in the order of their files.
std::vector<DetectorDefinition> all_detectors();

// All given detectors up to `level` watching one Context, which outlives the Watch.
class Watch {
 public:
  Watch(Context& context, WatchLevel level,
        std::vector<DetectorDefinition> detectors = all_detectors());
  const Findings& findings() const { return findings_; }

  struct Check {
    DetectorDefinition detector;
    std::unique_ptr<Watcher> watcher;  // null: not at this level
  };
  const std::vector<Check>& checks() const { return checks_; }
  WatchLevel level() const { return level_; }

 private:
  WatchLevel level_;
  Findings findings_;
  std::vector<Check> checks_;
};

}  // namespace faultline::diagnose
