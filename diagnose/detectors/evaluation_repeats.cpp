// evaluation.repeats: while a model is only evaluated, the same question has the same answer.
//
// Sees, between EvaluationBeginEvent and EvaluationEndEvent:
//   - launches of dropout. Fires at the first with a probability above 0: it makes the output
//     depend on a mask that neither the parameters nor the input determine. nn.dropout-in-eval.
//   - what is asked and answered: the ids that embeddings look up and the labels of cross_entropy,
//     and its losses. Fires when a question is asked again and one loss differs, in any bit: every
//     op gives the same bits for the same input, whatever the threads. Without a dropout it can not
//     say what made the difference, and names no cause.
// Answers are forgotten at the first launch outside of an evaluation, which may have moved a
// parameter. A program that never evaluates the same text twice in a row is judged by its dropout.
// Silent: dropout in training, dropout of probability 0, and a program that samples masks on
// purpose (Monte Carlo dropout) and therefore does not announce an evaluation.
#include <fmt/format.h>

#include <bit>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

using Values = std::vector<double>;

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

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
  void evaluation_ends(const train::EvaluationEndEvent&) {
    --open_;
    question_.clear();
  }

  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    const std::string_view op = launch.label.op;
    if (open_ == 0) {
      answers_.clear();
    } else if (op == "dropout") {
      acts(launch);
    } else if (op == "embedding") {
      ask(launch.args.inputs[1]);
    } else if (op == "cross_entropy") {
      ask(launch.args.inputs[1]);
      answer(std::exchange(question_, {}), sample(launch.args.outputs[0]));
    }
  }

  void acts(const Launch& launch) {
    const double p = launch.args.attributes.as<DropoutAttributes>().p;
    if (p == 0) return;
    dropped_ = true;
    const char* module = launch.label.module;
    report("nn.dropout-in-eval", 0.98, "dropout",
           fmt::format("dropout of {} ran on {} elements{}{} while the model was evaluated", p,
                       launch.args.outputs[0].numel(), *module != 0 ? " in " : "", module));
  }

  void ask(const TensorView& ids) {
    const Values more = sample(ids);
    question_.insert(question_.end(), more.begin(), more.end());
  }

  void answer(Values question, const Values& losses) {
    const auto [known, is_new] = answers_.emplace(std::move(question), losses);
    if (is_new || dropped_) return;
    const Values& before = known->second;
    if (before.size() != losses.size() || losses.empty()) return;
    int64_t differ = 0;
    for (size_t i = 0; i < losses.size(); ++i) {
      differ += std::bit_cast<uint64_t>(losses[i]) != std::bit_cast<uint64_t>(before[i]) ? 1 : 0;
    }
    if (differ == 0) return;
    report("", 0.9, "cross_entropy",
           fmt::format("the same text was evaluated twice with the same parameters, and {} of {} "
                       "losses differ (mean {:.9g}, then {:.9g}); no dropout ran: something else "
                       "draws numbers, or keeps a state that evaluating changes",
                       differ, losses.size(), mean_of(before), mean_of(losses)));
  }

  int open_ = 0;
  bool dropped_ = false;
  Values question_;
  std::map<Values, Values> answers_;  // losses by ids and labels
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
