#include "lab/fault.h"

#include <algorithm>

#include "core/error.h"

namespace faultline::lab {

void Metrics::set(Metric metric) {
  const auto known = std::find_if(metrics_.begin(), metrics_.end(),
                                  [&](const Metric& m) { return m.name == metric.name; });
  if (known == metrics_.end()) {
    metrics_.push_back(std::move(metric));
  } else {
    *known = std::move(metric);
  }
}

std::optional<double> Metrics::find(const std::string& name) const {
  for (const Metric& metric : metrics_) {
    if (metric.name == name) return metric.value;
  }
  return std::nullopt;
}

namespace {

class OneMeasurement : public Experiment {
 public:
  OneMeasurement(RunOptions options, Measurement measure)
      : options_(options), measure_(std::move(measure)) {}
  void step(int64_t) override { measure_(options_, metrics_); }
  void report(Metrics& metrics) override { metrics = metrics_; }

 private:
  RunOptions options_;
  Measurement measure_;
  Metrics metrics_;
};

}  // namespace

Variant::Variant(std::string fault, std::string name, std::string title)
    : fault_(std::move(fault)), name_(std::move(name)), title_(std::move(title)) {}

Variant& Variant::wrong(Plant plant) {
  wrong_ = std::move(plant);
  return *this;
}

Variant& Variant::begins(int64_t step) {
  first_wrong_step_ = step;
  return *this;
}

Variant& Variant::run(int64_t steps, BuildExperiment build) {
  steps_ = steps;
  build_ = std::move(build);
  return *this;
}

Variant& Variant::run(Measurement measure) {
  return run(1, [measure = std::move(measure)](const RunOptions& options) {
    return std::make_unique<OneMeasurement>(options, measure);
  });
}

Variant& Variant::remedy(Plant plant) {
  remedy_ = std::move(plant);
  return *this;
}

Variant& Variant::starts_again(const std::string& reason) {
  restart_reason_ = reason;
  return *this;
}

Variant& Variant::claimed(std::string what, Plant remedy) {
  claim_ = Claim{std::move(what), std::move(remedy)};
  return *this;
}

Variant& Variant::expect(const std::string& metric, double value) {
  expectations_.push_back({metric, value, 0, ""});
  return *this;
}

Variant& Variant::expect_within(const std::string& metric, double value, double bound,
                                const std::string& reason) {
  expectations_.push_back({metric, value, bound, reason});
  return *this;
}

Variant& Variant::fixed_within(double relative_bound, const std::string& reason) {
  fixed_bound_ = relative_bound;
  fixed_reason_ = reason;
  return *this;
}

Variant& Variant::caught_by(const std::string& detector) {
  detector_ = detector;
  return *this;
}

Variant& Variant::in_training(TrainingForm form) {
  training_ = std::move(form);
  return *this;
}

Variant& Variant::not_in_training(const std::string& reason) {
  no_training_reason_ = reason;
  return *this;
}

Variant& Variant::in_generation(GenerationForm form) {
  generation_ = std::move(form);
  if (!training_) no_training_reason_ = "it is in what generates text";
  return *this;
}

const GenerationForm& Variant::generation() const {
  require(generation_.has_value(), "{}: cannot be planted where text is generated; {}{}",
          full_name(), has_training_form() ? "a training run can have it: " : "see ",
          has_training_form() ? training_command() : "`faultline lab " + full_name() + "`");
  return *generation_;
}

std::string Variant::generation_command() const {
  return fmt::format("faultline generate DIR --prompt TEXT --fault {} --watch full", full_name());
}

const TrainingForm& Variant::training() const {
  require(training_.has_value(),
          "{}: cannot be planted in a training run: {}; `faultline lab {}` "
          "shows it",
          full_name(), no_training_reason_, full_name());
  return *training_;
}

std::string Variant::training_command() const {
  return fmt::format("faultline train tiny --steps {} --fault {} --watch full --out DIR",
                     training().steps, full_name());
}

void Variant::check() const {
  require(wrong_ != nullptr, "case {}: has no wrong code; call .wrong(...)", full_name());
  require(build_ != nullptr && steps_ > 0, "case {}: has nothing to run; call .run(...)",
          full_name());
  require(!expectations_.empty(),
          "case {}: expects no figure; say with .expect what the faulty run must show",
          full_name());
  require(!detector_.empty(), "case {}: names no detector; call .caught_by(...)", full_name());
}

Fault::Fault(FaultText text) : text_(std::move(text)) {
  const std::pair<const char*, const std::string*> needed[] = {
      {"id", &text_.id},           {"title", &text_.title},
      {"domain", &text_.domain},   {"mechanism", &text_.mechanism},
      {"symptom", &text_.symptom}, {"truth", &text_.truth},
      {"fix", &text_.fix}};
  for (const auto& [what, value] : needed) {
    require(!value->empty(), "case {}: its text has no {}", text_.id, what);
  }
}

Variant& Fault::variant(const std::string& name, const std::string& title) {
  for (const Variant& known : variants_) {
    require(known.name() != name, "case {}: has two variants '{}'", text_.id, name);
  }
  return variants_.emplace_back(text_.id, name, title);
}

}  // namespace faultline::lab
