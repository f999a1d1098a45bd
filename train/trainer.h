#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "core/context.h"
#include "data/sampler.h"
#include "data/token_store.h"
#include "nn/gpt2.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "train/config.h"
#include "train/events.h"

namespace faultline::train {

// How the gradients of the last step are cleared before the next one.
struct ZeroGradSeam {
  static constexpr const char* name = "zero grad";
  using Signature = void(nn::Module& model);
  static void standard(nn::Module& model) { model.clear_gradients(); }
};

// What attention may see of a batch.
struct MaskSeam {
  static constexpr const char* name = "mask";
  using Signature = nn::Mask(const Batch& batch);
  // Causal attention within documents, padding seen by nobody.
  static nn::Mask standard(const Batch& batch) {
    return {.causal = true, .key_valid = batch.key_valid, .documents = batch.documents};
  }
};

// How a model is run on a batch: its logits.
struct ForwardSeam {
  static constexpr const char* name = "forward";
  using Signature = Tensor(nn::LanguageModel& model, const Batch& batch);
  // With what attention may see of it, and nothing else: no state of an earlier batch.
  static Tensor standard(nn::LanguageModel& model, const Batch& batch) {
    return model(batch.inputs, Context::current().seams.call<MaskSeam>(batch));
  }
};

// A micro-batch as its normalisation sees it.
struct MicroBatch {
  const Batch& batch;
  int64_t step_labels;  // valid labels of the whole step, never 0
  int64_t count;        // micro-batches of the step
};

// What a micro-batch adds to the step's objective, given the sum of its token losses.
struct NormalisationSeam {
  static constexpr const char* name = "loss normalisation";
  using Signature = Tensor(const Tensor& loss_sum, const MicroBatch& micro);
  // Divided by the valid labels of the whole step, so that every token weighs the same.
  static Tensor standard(const Tensor& loss_sum, const MicroBatch& micro) {
    return loss_sum * (1.0 / static_cast<double>(micro.step_labels));
  }
};

struct StepResult {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;
};

// A training run in memory: model, optimizer, sampler and their state. Knows nothing of files,
// terminals or verdicts. Lives on the current Context.
class Trainer {
 public:
  // `tokens` holds ids below config.vocab_size; the last tenth is held out. `model` is trained as
  // it is; null: a new one of config.model().
  Trainer(const Config& config, TokenStore tokens,
          std::unique_ptr<nn::LanguageModel> model = nullptr);

  // Sampler -> forward and backward of each micro-batch -> clip -> optimizer. Normalised by the
  // step's count of valid labels, which must not be 0: InvalidArgument, before anything was
  // changed. A loss that is not finite is reported as it is, and the update is applied as it is.
  StepResult step();

  // Mean loss in nats per label on the held-out part, in evaluation mode; at most `batches` batches
  // (0: all).
  double evaluate(int64_t batches = 0);
  // The same; `stop` is asked before each batch, and when it says yes there is no loss.
  std::optional<double> evaluate_unless(const std::function<bool()>& stop, int64_t batches = 0);
  // Loss on `rows` sequences of fresh uniform tokens, made by (seed, step), under the run's own
  // label rule; emits a FloorProbeEvent. Changes nothing that a later step reads.
  FloorProbeEvent probe_floor(int64_t rows);
  // Merges the adapters, runs the model on `rows` sequences of held-out text, and undoes the merge,
  // bit for bit; emits a MergeProbeEvent with what the model says before and then. Nothing for a
  // model without adapters, and where a product of theirs is not finite.
  void probe_merge(int64_t rows);

  int64_t steps_done() const { return step_; }
  const Config& config() const { return config_; }
  nn::LanguageModel& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

  // All that a bitwise continuation needs: model (of one with an adapter, the adapter alone),
  // optimizer, sampler, step.
  State state();
  // Throws InvalidArgument when the state is of another model, other data or another seed.
  void load(const State& state);

 private:
  std::vector<Batch> micro_batches();
  // Adds the gradients of one micro-batch; returns the sum of its losses.
  double forward_backward(const MicroBatch& micro, int64_t step);

  Config config_;
  std::shared_ptr<void> attention_policy_;
  TokenStore tokens_;
  DataSplit split_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<optim::GradientClip> clip_;
  std::unique_ptr<Sampler> sampler_;
  std::vector<Parameter*> parameters_;
  int64_t step_ = 0;
  bool announced_ = false;  // whether the RunEvent was emitted
};

}  // namespace faultline::train
