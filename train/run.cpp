#include "train/run.h"

#include <chrono>

#include "io/checkpoint.h"
#include "io/json_lines.h"

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

}  // namespace

RunResult run(Trainer& trainer, const std::string& directory, const RunOptions& options) {
  JsonLinesWriter metrics(directory + "/metrics.jsonl");
  RunResult result{Stop::no, trainer.steps_done(), {}};
  const auto evaluate = [&](int64_t batches) {
    const double loss = trainer.evaluate(batches);
    metrics.write(Json::object().set("step", trainer.steps_done()).set("eval_loss", loss));
    if (options.on_evaluation) options.on_evaluation(trainer.steps_done(), loss);
    return loss;
  };

  while (trainer.steps_done() < options.steps && result.stop == Stop::no) {
    if (options.before_step) options.before_step(trainer.steps_done() + 1);
    const auto start = std::chrono::steady_clock::now();
    const StepResult step = trainer.step();
    const double ms = milliseconds_since(start);
    metrics.write(line_of(step, ms));
    if (options.on_step) options.on_step(step, ms);
    result.step = step.step;

    const bool last = step.step == options.steps;
    if (options.probe_every > 0 && (last || due(step.step, options.probe_every))) {
      trainer.probe_floor(kProbeRows);
    }
    if (options.stop) result.stop = options.stop();
    if (last || result.stop != Stop::no || due(step.step, options.checkpoint_every)) {
      save_checkpoint(directory, step.step, trainer.state());
    }
    if (result.stop != Stop::no) break;
    if (last) {
      result.held_out_loss = evaluate(0);
    } else if (due(step.step, trainer.config().eval_every)) {
      evaluate(kEvaluationBatches);
    }
  }
  return result;
}

}  // namespace faultline::train
