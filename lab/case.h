#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/state.h"
#include "diagnose/detector.h"

// One fault, one file. A file in lab/cases/ defines a fault with its text and variants:
//
//   FAULT(adamw_step_counter) {
//     auto& fault = lab.fault({.id = "adamw.step-counter", .domain = "precision", .seed = "004 3.1", ...});
//     fault.variant("bf16", "A step counter in bf16 stops at 256")
//         .wrong([](Context& c) { return c.seams.replace<optim::StepCounterSeam>(...); })
//         .run(steps(1000), [](Metrics& m) { return ...experiment...; })
//         .expect("steps counted", 256)
//         .caught_by("counter.advances")
//         .in_training({.steps = 400});
//   }
namespace faultline::lab {

// Named figures of a run, in the order in which they were first set.
class Metrics {
 public:
  void set(const std::string& name, double value);
  const std::vector<std::pair<std::string, double>>& values() const { return values_; }
  std::optional<double> find(const std::string& name) const;

 private:
  std::vector<std::pair<std::string, double>> values_;
};

// What healthy, faulty and fixed run: it is built afresh for each, goes step by step, and can be
// saved and restored so that a repaired run can go back to its last good state.
class Experiment {
 public:
  virtual ~Experiment() = default;
  virtual void step(int64_t step) = 0;  // from 1
  virtual State state() { return {}; }
  virtual void load(const State&) {}
  virtual void report(Metrics& metrics) = 0;
};

struct RunOptions {
  uint64_t seed = 1;
};

using BuildExperiment = std::function<std::unique_ptr<Experiment>(const RunOptions&)>;
// Swaps wrong code in; what it returns holds the replacement.
using Plant = std::function<std::shared_ptr<void>(Context&)>;

// An article's own remedy, tried on top of the fault.
enum class Outcome : uint8_t { works, hides, fails };
struct Claim {
  Plant remedy;
  Outcome outcome;
};

struct Expectation {
  std::string metric;
  double value;
  double relative_bound;  // 0: exact
  std::string reason;     // why there is a bound
};

// How the fault is planted in a real training run.
struct TrainingForm {
  int64_t steps = 200;
  std::map<std::string, std::string> needs;  // configuration in which it can show
};

class Variant {
 public:
  Variant(std::string name, std::string title) : name_(std::move(name)), title_(std::move(title)) {}

  Variant& wrong(Plant plant);
  // `steps` steps of the experiment; healthy, faulty and fixed share it.
  Variant& run(int64_t steps, BuildExperiment build);
  // A remedy other than the framework's own component. Without one, the fixed run is the faulty one
  // taken back to its last good state when a detector fires, continued with the right component.
  Variant& remedy(Plant plant);
  Variant& claimed(Claim claim);
  // The faulty run must show exactly this figure, and the healthy one must not.
  Variant& expect(const std::string& metric, double value);
  Variant& expect_within(const std::string& metric, double value, double relative_bound,
                         const std::string& reason);
  // The fixed run equals the healthy one within this bound instead of bitwise.
  Variant& fixed_within(double relative_bound, const std::string& reason);
  Variant& caught_by(const std::string& detector);
  Variant& in_training(TrainingForm form);

  const std::string& name() const { return name_; }
  const std::string& title() const { return title_; }

 private:
  friend class CaseRunner;
  friend class Catalogue;
  std::string name_;
  std::string title_;
  Plant wrong_;
  Plant remedy_;
  std::optional<Claim> claim_;
  BuildExperiment build_;
  int64_t steps_ = 1;
  std::vector<Expectation> expectations_;
  double fixed_bound_ = 0;
  std::string fixed_reason_;
  std::string detector_;
  std::optional<TrainingForm> training_;
};

// The text of a fault: the one source of `explain` and of its page.
struct FaultText {
  std::string id;
  std::string title;
  std::string domain;  // attention, precision, optimizer, data, ...
  std::string seed;    // section of a source article, "-" for none
  std::string mechanism;
  std::string symptom;
  std::string article_says;
  std::string truth;
  std::string fix;
  std::vector<std::string> sources;
};

}  // namespace faultline::lab
