#include "train/run.h"

#include <algorithm>
#include <chrono>

#include "io/checkpoint.h"
#include "io/json_lines.h"
#include "train/lora.h"

namespace faultline::train {
namespace {

constexpr int64_t kProbeRows = 8;
// Batches of an evaluation in the middle of a run.
constexpr int64_t kEvaluationBatches = 32;

bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

Json line_of(const StepResult& result, double ms) {
  return Json::object()
      .set("step", result.step)
      .set("loss", result.loss)
      .set("lr", result.lr)
      .set("grad_norm", result.grad_norm)
      .set("tokens", result.tokens)
      .set("ms", ms);
}

std::string metrics_path(const std::string& directory) { return directory + "/metrics.jsonl"; }

// Whether the metrics hold an evaluation of that step.
bool was_evaluated(const std::string& directory, int64_t step) {
  const std::vector<Json> lines = read_json_lines(metrics_path(directory));
  return std::any_of(lines.begin(), lines.end(), [step](const Json& line) {
    return line.find("eval_loss") != nullptr && line.at("step").integer() == step;
  });
}

// A run under way: the loop of `run` and what it writes.
class Loop {
 public:
  Loop(Trainer& trainer, const std::string& directory, const RunOptions& options)
      : trainer_(trainer),
        directory_(directory),
        options_(options),
        metrics_(metrics_path(directory)),
        result_{Stop::no, trainer.steps_done(), {}},
        saved_step_(trainer.steps_done()) {}

  RunResult go() {
    make_up_evaluation();
    while (trainer_.steps_done() < options_.steps && result_.stop == Stop::no) step();
    return result_;
  }

 private:
  bool is_last() const { return trainer_.steps_done() == options_.steps; }

  // A run that was stopped before its evaluation was done has it after the resume.
  void make_up_evaluation() {
    const int64_t step = trainer_.steps_done();
    if (step > 0 && !was_evaluated(directory_, step)) evaluate_if_due();
  }

  void step() {
    if (options_.before_step) options_.before_step(trainer_.steps_done() + 1);
    const auto start = std::chrono::steady_clock::now();
    const StepResult step = trainer_.step();
    const double ms = milliseconds_since(start);
    metrics_.write(line_of(step, ms));
    if (options_.on_step) options_.on_step(step, ms);
    result_.step = step.step;
    if (options_.probe_every > 0 && (is_last() || due(step.step, options_.probe_every))) {
      trainer_.probe_floor(kProbeRows);
      trainer_.probe_merge(1);
    }
    // Saved before the evaluation, which may take long.
    if (is_last() || asks_to_stop() || due(step.step, options_.checkpoint_every)) save();
    if (result_.stop == Stop::no) evaluate_if_due();
  }

  // Remembers the answer; once yes, always yes.
  bool asks_to_stop() {
    if (result_.stop == Stop::no && options_.stop) result_.stop = options_.stop();
    return result_.stop != Stop::no;
  }

  void save() {
    save_checkpoint(directory_, trainer_.steps_done(), trainer_.state());
    save_adapter(directory_, trainer_);
    saved_step_ = trainer_.steps_done();
  }

  // All of the held-out part at the end of the run, some batches of it at every `eval_every` steps.
  void evaluate_if_due() {
    const int64_t step = trainer_.steps_done();
    if (!is_last() && !due(step, trainer_.config().eval_every)) return;
    const auto stop = [this] { return asks_to_stop(); };
    const auto loss = trainer_.evaluate_unless(stop, is_last() ? 0 : kEvaluationBatches);
    if (!loss) {
      if (saved_step_ != step) save();
      return;
    }
    metrics_.write(Json::object().set("step", step).set("eval_loss", *loss));
    if (options_.on_evaluation) options_.on_evaluation(step, *loss);
    if (is_last()) result_.held_out_loss = loss;
  }

  Trainer& trainer_;
  const std::string& directory_;
  const RunOptions& options_;
  JsonLinesWriter metrics_;
  RunResult result_;
  int64_t saved_step_;
};

}  // namespace

RunResult run(Trainer& trainer, const std::string& directory, const RunOptions& options) {
  return Loop(trainer, directory, options).go();
}

}  // namespace faultline::train
