// evaluation.repeats: while a model is only evaluated, nothing may be drawn at random.
//
// Sees: launches of dropout with a probability above 0, between EvaluationBeginEvent and
// EvaluationEndEvent. Fires: at the first. There is no threshold: one such launch makes the output
// depend on a mask that the parameters and the input do not determine.
// Silent: dropout in training, dropout of probability 0, and a program that samples masks on
// purpose (Monte Carlo dropout) and therefore does not announce an evaluation.
// It serves nn.dropout-in-eval alone: dropout is the only op that draws numbers in a forward pass.
#include <fmt/format.h>

#include <cstring>

#include "diagnose/detector.h"
#include "kernels/attributes.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

class EvaluationRepeats : public Watcher {
 public:
  EvaluationRepeats(Context& context, Findings& findings)
      : Watcher(context, findings, "evaluation.repeats") {
    on(&EvaluationRepeats::evaluation_begins);
    on(&EvaluationRepeats::evaluation_ends);
    on(&EvaluationRepeats::launched);
  }

 private:
  void evaluation_begins(const train::EvaluationBeginEvent&) {
    ++open_;
    looked();
  }
  void evaluation_ends(const train::EvaluationEndEvent&) { --open_; }

  void launched(const LaunchEvent& event) {
    if (open_ == 0 || std::strcmp(event.launch.label.op, "dropout") != 0) return;
    const double p = event.launch.args.attributes.as<DropoutAttributes>().p;
    if (p == 0) return;
    const char* module = event.launch.label.module;
    report("nn.dropout-in-eval", 0.98, "dropout",
           fmt::format("dropout of {} ran on {} elements{}{} while the model was evaluated", p,
                       event.launch.args.outputs[0].numel(), *module != 0 ? " in " : "", module));
  }

  int open_ = 0;
};

}  // namespace

DETECTOR(evaluation_repeats) {
  return {"evaluation.repeats",
          WatchLevel::light,
          {{"nn.dropout-in-eval",
            "Dropout acts although the model is only evaluated: the result depends on a random "
            "mask, and is worse than the model is.",
            "Pass dropout's probability only in training mode, and 0 in evaluation.",
            "No dropout is launched during an evaluation; two evaluations are equal bit by bit."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<EvaluationRepeats>(context, findings);
          }};
}

}  // namespace faultline::diagnose
