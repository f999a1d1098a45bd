#include <algorithm>
#include <array>

#include "autograd/functional.h"
#include "lab/case.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: a loss that shifts its labels, on data that has shifted them already.
Tensor loss_that_shifts(const Tensor& logits_BTV, const Tensor& labels_BT) {
  const Tensor later_BT = slice(labels_BT, 1, 1, labels_BT.size(1));
  const Tensor none_B1 = full({labels_BT.size(0), 1}, kIgnoredLabel, labels_BT.dtype());
  return nn::TokenLossSeam::standard(logits_BTV, cat(std::array{later_BT, none_B1}, 1));
}
// page: end

// The remedy that such a loss asks for: data whose labels are the inputs themselves.
std::vector<int32_t> unshifted(const TokenRow& row) {
  return {row.tokens.begin(), row.tokens.end() - 1};
}

// One long document that counts 1, 2, ..., 15, 1, 2, ...; id 0 ends a document.
constexpr int32_t kCycle = 15;
constexpr int64_t kShiftSteps = 60;

std::vector<int32_t> counted(int64_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>((first - 1 + i) % kCycle) + 1);
  }
  return ids;
}

TokenStore counting_text() {
  TokenStoreBuilder builder(kCycle + 1, 0);
  builder.add_document(counted(4000, 1));
  return builder.finish();
}

train::Config counting_model(uint64_t seed) {
  train::Config config;
  config.num_layers = 1;
  config.vocab_size = kCycle + 1;
  config.batch_size = 8;
  config.lr = 1e-2;
  config.warmup_steps = 5;
  config.schedule_steps = kShiftSteps;
  config.seed = seed;
  return config;
}

// Learns to count, and is then asked for what follows each place of a row.
class LearnsToCount : public Experiment {
 public:
  explicit LearnsToCount(const RunOptions& options)
      : config_(counting_model(options.seed)), trainer_(config_, counting_text()) {}

  void step(int64_t step) override {
    const double loss = trainer_.step().loss;
    losses_.x.push_back(static_cast<double>(step));
    losses_.y.push_back(loss);
  }
  State state() override { return trainer_.state(); }
  void load(const State& state) override { trainer_.load(state); }

  void report(Metrics& metrics) override {
    const std::vector<int32_t> row = counted(config_.seq_len + 1, 1);
    const std::vector<int64_t> answers = predictions(row);
    // Of the places before the last, every one has a token after next.
    int64_t next = 0;
    int64_t after_next = 0;
    Curve curve{"predicted symbol by symbol given", {}, {}};
    for (size_t t = 0; t + 2 < row.size(); ++t) {
      next += answers[t] == row[t + 1] ? 1 : 0;
      after_next += answers[t] == row[t + 2] ? 1 : 0;
      if (t >= kCycle) continue;
      curve.x.push_back(row[t]);
      curve.y.push_back(static_cast<double>(answers[t]));
    }
    metrics.count("labels two on", static_cast<double>(labels_two_on(row)));
    metrics.count("said the next", static_cast<double>(next));
    metrics.count("said two on", static_cast<double>(after_next));
    metrics.add(losses_);
    metrics.add(curve);
  }

 private:
  // At how many places the loss takes the token after next for the label: there it lets a model
  // that is sure of that token off.
  int64_t labels_two_on(const std::vector<int32_t>& row) {
    const Batch batch =
        make_batch(std::array{TokenRow{row, static_cast<int64_t>(row.size()), 0}}, 0);
    const int64_t V = config_.vocab_size;
    std::vector<float> sure(static_cast<size_t>(config_.seq_len * V), 0);
    for (size_t t = 0; t + 2 < row.size(); ++t) sure[t * static_cast<size_t>(V) + row[t + 2]] = 99;
    const auto losses =
        Context::current()
            .seams.call<nn::TokenLossSeam>(tensor(sure, {1, config_.seq_len, V}), batch.labels)
            .to_vector<double>();
    // The last place has no token after next.
    return std::count_if(losses.begin(), losses.end() - 1, [](double loss) { return loss < 1; });
  }

  // The likeliest symbol after each place of a row but the last.
  std::vector<int64_t> predictions(const std::vector<int32_t>& row) {
    const NoGrad off;
    const nn::EvaluationMode evaluation(trainer_.model());
    const Tensor tokens_1T =
        tensor(std::vector<int32_t>(row.begin(), row.end() - 1), {1, config_.seq_len});
    return argmax(trainer_.model()(tokens_1T, nn::Mask{}), -1).to_vector<int64_t>();
  }

  train::Config config_;
  train::Trainer trainer_;
  Curve losses_{"loss by step", {}, {}};
};

}  // namespace

FAULT(labels_double_shift) {
  Fault& fault = lab.fault(
      {.id = "labels.double-shift",
       .title = "Labels are shifted twice: the model learns to skip a token",
       .domain = "data",
       .mechanism =
           "The label at t must be token t + 1. Where the data's labels are shifted and the loss "
           "shifts again, it is token t + 2, and the last place of a row has none. On text that "
           "counts 1, 2, 3, ... the loss falls to 0 as it should, because the token after next is "
           "as certain; but of 31 places the model predicts the next token at none, and the one "
           "after it at all 31. It answers 1 with 3.",
       .symptom =
           "Training runs well, at a loss that is too high for the model: token t + 2 is harder "
           "to guess than token t + 1. Text that it generates drops every other token.",
       .truth = "Causal models of transformers shift inside, so labels are to be the inputs "
                "themselves. Its documentation did not say so, and in 2026 the second shift was "
                "found in four of its own models, whose data was shifted already.",
       .fix = "Shift in exactly one place, and say in the name of an argument whether it wants "
              "shifted labels. Where the loss shifts, give it the inputs as labels. Test it with "
              "text that counts.",
       .sources =
           {"transformers issue 47394 (2026-07-18): GitForCausalLM shifts twice. "
            "https://github.com/huggingface/transformers/issues/47394",
            "transformers pull request 46898 (2026-06-25): the same in Florence2. "
            "https://github.com/huggingface/transformers/pull/46898",
            "transformers pull request 44642 (2026-03-12): say that labels are shifted inside. "
            "https://github.com/huggingface/transformers/pull/44642"},
       .look_alikes =
           "labels.no-shift has a loss that is too low, not too high, and the model repeats its "
           "input. A tokenizer that splits text other than the one it was trained with gives a "
           "loss that is too high as well, with labels that are the next tokens. Refuted when one "
           "label that the loss takes inside of a document is not the token after next.",
       .exercise = "Tokens are independent and uniform over 16 symbols. Which loss do the right "
                   "labels give in the long run, which the doubly shifted, and what would tell "
                   "them apart?",
       .answer = "Both ln 16 = 2.77: neither the next token nor the one after it can be guessed. "
                 "No curve tells them apart, only a look at the labels themselves."});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::TokenLossSeam>(&loss_that_shifts);
      })
      .run<LearnsToCount>(kShiftSteps)
      .remedy([](Context& context) { return context.seams.replace<LabelSeam>(&unshifted); })
      .expect("labels two on", 31)
      .expect("said the next", 0)
      .expect("said two on", 31)
      .caught_by("labels.alignment")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
