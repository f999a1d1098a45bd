#include "train/trainer.h"

#include <cmath>
#include <utility>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/rng.h"
#include "train/lora.h"

namespace faultline::train {
namespace {

// Positions of an evaluation batch: enough to keep the products busy, little enough memory for a
// large vocabulary.
constexpr int64_t kEvaluationPositions = 1024;

TokenStore checked(TokenStore tokens, const Config& config) {
  config.check();
  check_memory_to_train(config);
  require(tokens.vocab_size() <= config.vocab_size,
          "vocab_size: the data has {} ids, the model {}; set vocab_size to at least {}",
          tokens.vocab_size(), config.vocab_size, tokens.vocab_size());
  return tokens;
}

Tensor logits_of(nn::LanguageModel& model, const Batch& batch) {
  return Context::current().seams.call<ForwardSeam>(model, batch);
}

// Tells observers that an evaluation begins, and when it is over.
class EvaluationNotice {
 public:
  explicit EvaluationNotice(int64_t step) : step_(step) {
    Context::current().events.emit(EvaluationBeginEvent{step_});
  }
  ~EvaluationNotice() { Context::current().events.emit(EvaluationEndEvent{step_}); }
  EvaluationNotice(const EvaluationNotice&) = delete;
  EvaluationNotice& operator=(const EvaluationNotice&) = delete;

 private:
  int64_t step_;
};

}  // namespace

Trainer::Trainer(const Config& config, TokenStore tokens, std::unique_ptr<nn::LanguageModel> model)
    : config_(config),
      attention_policy_(config.apply_attention_policy()),
      tokens_(checked(std::move(tokens), config)) {
  split_ = hold_out_last_tenth(tokens_, config.seq_len);
  const Packing packing = config.pack ? Packing::packed : Packing::padded;
  sampler_ = std::make_unique<Sampler>(
      tokens_, split_.training,
      SamplerOptions{config.seq_len, config.batch_size, config.seed, packing});
  model_ = model != nullptr ? std::move(model) : nn::make_model(config.model(), config.seed);
  add_run_adapter(*model_, config);
  parameters_ = nn::trainable_parameters(*model_);
  optimizer_ =
      std::make_unique<optim::AdamW>(optim::decay_groups(parameters_, config.weight_decay),
                                     optim::AdamWOptions{config.beta1, config.beta2, config.eps});
  if (config.counted_steps > 0) optimizer_->set_counted(config.counted_steps);
  clip_ = std::make_unique<optim::GradientClip>(parameters_, config.clip_norm);
}

StepResult Trainer::step() {
  Context& context = Context::current();
  const int64_t step = step_ + 1;
  const Scoped<int64_t> number(context.step, step);
  if (!std::exchange(announced_, true)) context.events.emit(RunEvent{config_, parameters_});

  const std::vector<Batch> batches = micro_batches();
  int64_t labels = 0;
  for (const Batch& batch : batches) labels += batch.valid_tokens;
  require(labels > 0,
          "train: step {} has nothing to predict: all {} sequences of {} are padding or ends of "
          "documents; use a larger seq_len or batch_size",
          step, config_.batch_size, config_.seq_len);

  context.seams.call<ZeroGradSeam>(*model_);
  context.events.emit(StepBeginEvent{step, parameters_});
  double sum = 0;
  for (const Batch& batch : batches) {
    const auto count = static_cast<int64_t>(batches.size());
    sum += forward_backward(MicroBatch{batch, labels, count}, step);
  }
  const optim::Clip clip = clip_->measure();
  const double lr = config_.learning_rate().at(step);
  optimizer_->step(lr, clip.factor);
  sampler_->advance();
  step_ = step;

  const StepResult result{step, sum / static_cast<double>(labels), clip.norm.item<double>(), lr,
                          labels};
  context.events.emit(StepEndEvent{step, result.loss, result.grad_norm, lr, labels});
  return result;
}

std::vector<Batch> Trainer::micro_batches() {
  std::vector<Batch> batches;
  for (int64_t first = 0; first < config_.batch_size; first += config_.micro_batch()) {
    const int64_t count = std::min(config_.micro_batch(), config_.batch_size - first);
    batches.push_back(sampler_->batch(first, count));
  }
  return batches;
}

double Trainer::forward_backward(const MicroBatch& micro, int64_t step) {
  Context& context = Context::current();
  context.events.emit(BatchEvent{step, micro.batch});
  model_->dropout_key().set(step, micro.batch.first_sequence);
  const Tensor loss = nn::language_model_loss(logits_of(*model_, micro.batch), micro.batch.labels);
  const Tensor objective = context.seams.call<NormalisationSeam>(loss, micro);
  const double sum = loss.item<double>();
  context.events.emit(ObjectiveEvent{step, micro.batch.valid_tokens, sum, objective});
  backward(objective);
  return sum;
}

double Trainer::evaluate(int64_t batches) {
  return *evaluate_unless([] { return false; }, batches);
}

std::optional<double> Trainer::evaluate_unless(const std::function<bool()>& stop, int64_t batches) {
  const NoGrad off;
  const nn::EvaluationMode evaluation(*model_);
  const Scoped<int64_t> number(Context::current().step, step_);
  const EvaluationNotice notice(step_);
  const int64_t rows = std::max<int64_t>(1, kEvaluationPositions / config_.seq_len);
  const Evaluation held_out(tokens_, split_.held_out, config_.seq_len, rows);
  const int64_t count = batches == 0 ? held_out.batches() : std::min(batches, held_out.batches());
  double sum = 0;
  int64_t labels = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (stop()) return std::nullopt;
    const Batch batch = held_out.batch(i);
    const Tensor logits_BTV = logits_of(*model_, batch);
    sum += nn::language_model_loss(logits_BTV, batch.labels).item<double>();
    labels += batch.valid_tokens;
  }
  require(labels > 0, "evaluation: the held-out text has nothing to predict; use a longer text");
  return sum / static_cast<double>(labels);
}

FloorProbeEvent Trainer::probe_floor(int64_t rows) {
  const NoGrad off;
  const nn::EvaluationMode evaluation(*model_);
  Context& context = Context::current();
  const Scoped<int64_t> number(context.step, step_);
  const EvaluationNotice notice(step_);
  const int64_t width = config_.seq_len + 1;
  const auto vocabulary = static_cast<uint64_t>(config_.vocab_size);
  const RandomSequence random(config_.seed,
                              stream_of("floor probe") + static_cast<uint64_t>(step_));
  std::vector<int32_t> ids(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(random.below(vocabulary, i));
  std::vector<TokenRow> sequences;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const int32_t> tokens(ids.data() + row * width, static_cast<size_t>(width));
    sequences.push_back({tokens, width, tokens_.end_token()});
  }
  const Batch batch = make_batch(sequences, 0);
  const Tensor logits_BTV = logits_of(*model_, batch);
  const Tensor logits_NV = reshape(logits_BTV, {-1, config_.vocab_size});
  const std::vector<double> losses =
      cross_entropy_rows(logits_NV, reshape(batch.labels, {-1})).to_vector<double>();

  // Ignored labels add 0 to both sums.
  const auto count = static_cast<double>(batch.valid_tokens);
  double sum = 0;
  double squares = 0;
  for (const double loss : losses) {
    sum += loss;
    squares += loss * loss;
  }
  const double mean = sum / count;
  const double variance = std::max(0.0, squares / count - mean * mean);
  const FloorProbeEvent probe{step_, mean, std::log(static_cast<double>(config_.vocab_size)),
                              std::sqrt(variance / count), batch.valid_tokens};
  context.events.emit(probe);
  return probe;
}

void Trainer::probe_merge(int64_t rows) {
  const NoGrad off;
  if (config_.lora.empty()) return;
  for (const auto& [layer, adapter] : nn::adapters_of(*model_, kRunAdapter)) {
    if (!all_finite(adapter->product())) return;
  }
  const nn::EvaluationMode evaluation(*model_);
  Context& context = Context::current();
  const Scoped<int64_t> number(context.step, step_);
  const Batch batch = Evaluation(tokens_, split_.held_out, config_.seq_len, rows).batch(0);
  const Tensor beside_BTV = logits_of(*model_, batch);
  const nn::Merge merge = nn::merge_adapters(*model_, nn::Originals::keep);
  const Tensor merged_BTV = logits_of(*model_, batch);
  nn::unmerge_adapters(merge);
  context.events.emit(MergeProbeEvent{step_, beside_BTV, merged_BTV});
}

State Trainer::state() {
  State state;
  state.add("model", trained_state(*model_, config_));
  state.add("optimizer", optimizer_->state());
  state.add("sampler", sampler_->state());
  state.set_integer("step", step_);
  return state;
}

void Trainer::load(const State& state) {
  const int64_t step = state.integer("step");
  sampler_->load_state(state.part("sampler"));
  load_trained(*model_, config_, state.part("model"));
  optimizer_->load(state.part("optimizer"));
  step_ = step;
}

}  // namespace faultline::train
