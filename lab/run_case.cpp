#include "lab/run_case.h"

#include <fmt/format.h>

#include <chrono>

#include "autograd/functional.h"
#include "core/error.h"
#include "lab/judge.h"

namespace faultline::lab {
namespace {

using Detectors = std::vector<diagnose::DetectorDefinition>;

// A copy that later steps do not change. Made on a Context of its own, so that no detector takes
// the copying for a part of the run.
State copy_of(const State& state) {
  Context quiet;
  const ContextGuard guard(quiet);
  const NoGrad off;
  State copy = state;
  for (auto& [name, tensor] : copy.tensors) tensor = clone(tensor);
  return copy;
}

// Where a repaired run goes on from.
struct GoodState {
  int64_t next_step = 1;
  State state;
};

// One run of an experiment under the eyes of all detectors. One kernel thread: cases run side by
// side, and their tensors are small.
class WatchedRun {
 public:
  WatchedRun(const Variant& variant, const RunOptions& options, const std::vector<Plant>& plants,
             const Detectors& detectors)
      : variant_(variant),
        plants_(plants),
        context_(ContextOptions{.threads = 1, .seed = options.seed}),
        entered_(context_),
        watch_(context_, diagnose::WatchLevel::deep, detectors) {
    if (variant.first_wrong_step() == 1) plant();
    experiment_ = variant.build(options);
  }

  void start_from(const GoodState& good) {
    experiment_->load(good.state);
    next_step_ = good.next_step;
  }

  // Steps to the end. Returns the state before the step at which a detector first fired.
  GoodState run_remembering() {
    GoodState good;
    bool fired = false;
    while (next_step_ <= variant_.steps()) {
      if (!fired) good = {next_step_, copy_of(experiment_->state())};
      step();
      fired = !watch_.findings().empty();
    }
    return good;
  }
  void run() {
    while (next_step_ <= variant_.steps()) step();
  }

  RunRecord record() {
    RunRecord record;
    experiment_->report(record.metrics);
    record.detections = watch_.findings().ranked();
    return record;
  }

 private:
  void plant() {
    for (const Plant& plant : plants_) planted_.push_back(plant(context_));
  }
  void step() {
    if (next_step_ > 1 && next_step_ == variant_.first_wrong_step()) plant();
    const Scoped<int64_t> number(context_.step, next_step_);
    experiment_->step(next_step_);
    ++next_step_;
  }

  const Variant& variant_;
  std::vector<Plant> plants_;
  Context context_;
  ContextGuard entered_;
  diagnose::Watch watch_;
  std::vector<std::shared_ptr<void>> planted_;
  std::unique_ptr<Experiment> experiment_;
  int64_t next_step_ = 1;
};

RunRecord run_with(const Variant& variant, const RunOptions& options,
                   const std::vector<Plant>& plants, const Detectors& detectors) {
  WatchedRun run(variant, options, plants, detectors);
  run.run();
  return run.record();
}

void run_all(const Variant& variant, const RunOptions& options, const Detectors& detectors,
             CaseResult& result) {
  const Plant wrong = [&](Context& context) { return variant.plant(context); };
  result.healthy = run_with(variant, options, {}, detectors);
  {
    WatchedRun faulty(variant, options, {wrong}, detectors);
    const GoodState good = faulty.run_remembering();
    result.faulty = faulty.record();
    if (variant.remedy_plant() != nullptr) {
      result.fixed = run_with(variant, options, {wrong, variant.remedy_plant()}, detectors);
    } else {
      require(good.next_step > 1 || !variant.restart_reason().empty(),
              "it has no good state to go back to, so its fixed run would be the healthy one; give "
              "a .remedy, or let the fault begin later with .begins");
      WatchedRun repaired(variant, options, {}, detectors);
      repaired.start_from(good);
      repaired.run();
      result.fixed = repaired.record();
    }
  }
  if (!variant.claim()) return;
  result.claimed = run_with(variant, options, {wrong, variant.claim()->remedy}, detectors);
  result.outcome = judge_claim(*result.claimed, result.healthy, variant);
}

}  // namespace

CaseResult run_case(const Catalogue::Entry& entry, const RunOptions& options,
                    const Detectors& detectors) {
  const auto begin = std::chrono::steady_clock::now();
  CaseResult result = blank_result(*entry.fault, *entry.variant);
  try {
    run_all(*entry.variant, options, detectors, result);
    result.why = why_not_proven(result, *entry.variant);
  } catch (const std::exception& error) {
    result.why = fmt::format("a run ended with an error: {}", error.what());
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  result.seconds = passed.count();
  return result;
}

}  // namespace faultline::lab
