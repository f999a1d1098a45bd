#pragma once

#include <deque>
#include <map>

#include "core/context.h"
#include "lab/experiment.h"

namespace faultline::lab {

// Swaps code in; what it returns holds the replacement (usually the guard of SeamTable::replace).
using Plant = std::function<std::shared_ptr<void>(Context&)>;

// A figure that the faulty run must show and the healthy one must not.
struct Expectation {
  std::string metric;
  double value = 0;
  double bound = 0;    // largest |found - value|; 0: exact
  std::string reason;  // of a bound
};

// What an article proposes against the fault, tried where the fault is planted.
struct Claim {
  std::string what;
  Plant remedy;
};

// How the fault is planted in a real training run.
struct TrainingForm {
  int64_t steps = 200;                       // after so many steps of `train tiny` it is named
  std::map<std::string, std::string> needs;  // configuration in which it can show
};

// How the fault is planted in `faultline generate`.
struct GenerationForm {
  std::map<std::string, std::string> needs;  // flags without their dashes, under which it can show
};

// One way in which a fault happens, with the run that proves it. Built in a case file:
// wrong, run, expect and caught_by are mandatory.
class Variant {
 public:
  Variant(std::string fault, std::string name, std::string title);

  // The wrong code. Planted before the experiment is built, removed after its last step.
  Variant& wrong(Plant plant);
  // Plants wrong code, remedy and claim before this step instead (from 2), so that the run has a
  // good state to go back to.
  Variant& begins(int64_t step);
  // `steps` steps of an experiment; healthy, faulty and fixed share it.
  Variant& run(int64_t steps, BuildExperiment build);
  template <std::derived_from<Experiment> E>
  Variant& run(int64_t steps) {
    return run(steps, [](const RunOptions& options) { return std::make_unique<E>(options); });
  }
  Variant& run(Measurement measure);
  // A remedy other than the framework's own component, planted after the wrong code: in place of it
  // where both replace the same seam (the later one acts, and may call the wrong code), beside it
  // where they replace different ones or the remedy listens to events. Without one the fixed run is
  // the faulty one taken back to its last good state, the state before the step at which a detector
  // fired, and continued with the framework's component. Where that is the state before the first
  // step, such a run would be the healthy one, and the case fails.
  Variant& remedy(Plant plant);
  // Lets that be, where nothing better can be done than to start the run again; say why.
  Variant& starts_again(const std::string& reason);
  Variant& claimed(std::string what, Plant remedy);
  // The faulty run shows exactly this figure, the healthy one does not. NaN and infinities count.
  Variant& expect(const std::string& metric, double value);
  // The same within |found - value| <= bound; say why there is a bound.
  Variant& expect_within(const std::string& metric, double value, double bound,
                         const std::string& reason);
  // The figures of the fixed run equal the healthy ones within this relative bound, not bitwise.
  Variant& fixed_within(double relative_bound, const std::string& reason);
  // The detector that must rank first.
  Variant& caught_by(const std::string& detector);
  Variant& in_training(TrainingForm form);
  Variant& not_in_training(const std::string& reason);
  Variant& in_generation(GenerationForm form);

  const std::string& fault_id() const { return fault_; }
  const std::string& name() const { return name_; }
  const std::string& title() const { return title_; }
  // "adamw.step-counter:bf16", or the fault's id where there is only one variant.
  std::string full_name() const { return name_.empty() ? fault_ : fault_ + ":" + name_; }

  // Puts the wrong code into a Context until the guard is destroyed.
  std::shared_ptr<void> plant(Context& context) const { return wrong_(context); }
  // Throws InvalidArgument naming the fault and the reason when there is no such form (yet).
  const TrainingForm& training() const;
  // "faultline train tiny --steps 400 --fault ID --watch full --out DIR"
  std::string training_command() const;
  // Throws InvalidArgument naming the fault when there is no such form.
  const GenerationForm& generation() const;
  // "faultline generate DIR --prompt TEXT --fault ID --watch full"
  std::string generation_command() const;
  bool has_generation_form() const { return generation_.has_value(); }
  bool has_training_form() const { return training_.has_value(); }
  const std::string& no_training_reason() const { return no_training_reason_; }

  std::unique_ptr<Experiment> build(const RunOptions& options) const { return build_(options); }
  int64_t steps() const { return steps_; }
  int64_t first_wrong_step() const { return first_wrong_step_; }
  const std::string& restart_reason() const { return restart_reason_; }
  const Plant& remedy_plant() const { return remedy_; }
  const std::optional<Claim>& claim() const { return claim_; }
  const std::vector<Expectation>& expectations() const { return expectations_; }
  double fixed_bound() const { return fixed_bound_; }
  const std::string& fixed_reason() const { return fixed_reason_; }
  const std::string& detector() const { return detector_; }

  // Throws InvalidArgument naming what is missing of wrong, run, expect and caught_by.
  void check() const;

 private:
  std::string fault_;
  std::string name_;
  std::string title_;
  Plant wrong_;
  Plant remedy_;
  std::optional<Claim> claim_;
  BuildExperiment build_;
  int64_t steps_ = 0;
  int64_t first_wrong_step_ = 1;
  std::string restart_reason_;
  std::vector<Expectation> expectations_;
  double fixed_bound_ = 0;
  std::string fixed_reason_;
  std::string detector_;
  std::optional<TrainingForm> training_;
  std::optional<GenerationForm> generation_;
  std::string no_training_reason_ = "its case has no training form";
};

// The text of a fault: the one source of `explain`.
struct FaultText {
  std::string id;
  std::string title;
  std::string domain;        // attention, precision, optimizer, data, ...
  std::string seed = "-";    // section of a source article: "000 2.1", or "-"
  std::string mechanism;     // what happens, with its arithmetic
  std::string symptom;       // what one sees
  std::string article_says;  // "" where no article speaks of it
  std::string truth;
  std::string fix;
  std::vector<std::string> sources;  // dated
  // For the fault's page; a case outside of the tree may leave them out.
  std::string look_alikes;  // what else looks so, and what refutes it
  std::string exercise;     // one question to try
  std::string answer;
};

class Fault {
 public:
  // Throws InvalidArgument when a text that every fault needs is empty.
  explicit Fault(FaultText text);

  // The variant's place is kept for the life of the Fault.
  Variant& variant(const std::string& name, const std::string& title);
  // For a fault with one variant: it has no name, and the fault's title.
  Variant& only_variant() { return variant("", text_.title); }

  const FaultText& text() const { return text_; }
  const std::deque<Variant>& variants() const { return variants_; }

 private:
  FaultText text_;
  std::deque<Variant> variants_;
};

}  // namespace faultline::lab
