// objective.weights: every token of a step weighs the same in what is differentiated, and nothing
// is divided by a count of 0.
//
// Sees: ObjectiveEvent, the labels, loss sum and objective of each micro-batch. Objective / loss
// sum is the weight of one of its tokens. Fires:
//   - accum.normalisation, at the end of a step in which the weights differ while weight * labels
//     is one number: then each micro-batch weighs the same, however many tokens it has.
//   - loss.log-zero, at a micro-batch without a label whose objective is not finite. Its loss sum
//     is 0 whatever the model does, so only the division can have made it so.
// Tolerance: an objective may be rounded three times (the division, the scale, the product), so a
// weight errs by at most 3 u, with u the unit roundoff of the objective's dtype, and the ratio of
// two by 6 u. 8 u is taken. One more label in 1000 changes a weight by 1e-3, against 5e-7 in f32.
// A mean by sequence may be meant: a program that wants each of its sequences, one to a
// micro-batch, to weigh the same does exactly this. Nothing in a run tells that wish from the
// mistake, so it fires, and the evidence says so. Silent: a loss scale, which all micro-batches
// share; micro-batches with as many labels each, for which both ways agree; a micro-batch without
// labels whose objective is 0; weights that differ in another way, such as a task that is given
// more weight on purpose.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

constexpr double kRoundings = 8;

// A micro-batch of which a weight can be told.
struct Weighed {
  int64_t labels;
  double token;  // weight of one of its tokens
  double all() const { return token * static_cast<double>(labels); }
};

// Whether the numbers are one number within a relative tolerance.
template <class Number>
bool agree(const std::vector<Weighed>& parts, double tolerance, Number number) {
  const auto [low, high] = std::minmax_element(
      parts.begin(), parts.end(),
      [&](const Weighed& a, const Weighed& b) { return number(a) < number(b); });
  return number(*high) - number(*low) <= tolerance * std::abs(number(*high));
}

class ObjectiveWeights : public Watcher {
 public:
  ObjectiveWeights(Context& context, Findings& findings)
      : Watcher(context, findings, "objective.weights") {
    on(&ObjectiveWeights::goes_backward);
    on(&ObjectiveWeights::step_ends);
  }

 private:
  void goes_backward(const train::ObjectiveEvent& event) {
    looked();
    if (event.step != step_) parts_.clear();
    step_ = event.step;
    const auto objective = event.objective.item<double>();
    tolerance_ = kRoundings * unit_roundoff(event.objective.dtype());
    if (event.labels == 0 && !std::isfinite(objective)) {
      report(
          "loss.log-zero", 0.98, "loss",
          fmt::format("a micro-batch without a label has loss sum {} and an objective that is {}",
                      event.loss_sum, std::isnan(objective) ? "NaN" : "infinite"));
    }
    const double weight = objective / event.loss_sum;
    if (event.labels > 0 && std::isfinite(weight)) parts_.push_back({event.labels, weight});
  }

  void step_ends(const train::StepEndEvent& event) {
    if (event.step == step_ && parts_.size() > 1) judge();
    parts_.clear();
  }

  void judge() {
    if (agree(parts_, tolerance_, [](const Weighed& part) { return part.token; })) return;
    if (!agree(parts_, tolerance_, [](const Weighed& part) { return part.all(); })) return;
    const auto [fewest, most] =
        std::minmax_element(parts_.begin(), parts_.end(),
                            [](const Weighed& a, const Weighed& b) { return a.labels < b.labels; });
    report(
        "accum.normalisation", 0.97, "loss",
        fmt::format(
            "a token weighs {:.6g} in a micro-batch of {} labels and {:.6g} in one of "
            "{}; each of {} micro-batches weighs {:.6g} as a whole, which is right only where "
            "that is meant",
            fewest->token, fewest->labels, most->token, most->labels, parts_.size(), most->all()));
  }

  int64_t step_ = -1;
  double tolerance_ = 0;
  std::vector<Weighed> parts_;  // of the step that runs
};

}  // namespace

DETECTOR(objective_weights) {
  return {"objective.weights",
          WatchLevel::light,
          {{"accum.normalisation",
            "Each micro-batch is divided by its own number of labels, so a token weighs the more "
            "the shorter its micro-batch is.",
            "Sum the losses of a micro-batch and divide by the valid labels of the whole step.",
            "Objective / loss sum is the same number for every micro-batch of a step; or every "
            "sequence is meant to weigh the same, whatever its length."},
           {"loss.log-zero",
            "The loss of a micro-batch is divided by its number of valid labels, which is 0: 0/0 "
            "is NaN, and so may be every gradient from there on.",
            "Divide by the valid labels of the whole step, and check that count before.",
            "The micro-batch has a label, or its objective is 0."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<ObjectiveWeights>(context, findings);
          }};
}

}  // namespace faultline::diagnose
