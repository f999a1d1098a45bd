#include <cmath>

#include "core/rng.h"
#include "lab/case.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the label of a position is its own token.
std::vector<int32_t> own_tokens(const TokenRow& row) {
  std::vector<int32_t> labels(row.tokens.size() - 1, kIgnoredLabel);
  for (int64_t t = 0; t + 1 < row.length; ++t) labels[t] = row.tokens[t];
  return labels;
}
// page: end

// The remedy: a collator that moves what it got one place to the left, within each document. The
// last label of the text, which nothing moves into place, it takes from the tokens.
std::vector<int32_t> shifted_by_the_collator(const TokenRow& row) {
  std::vector<int32_t> labels = own_tokens(row);
  labels.erase(labels.begin());
  labels.push_back(kIgnoredLabel);
  if (row.length >= 2) labels[row.length - 2] = row.tokens[row.length - 1];
  for (size_t t = 0; t < labels.size(); ++t) {
    if (row.tokens[t] == row.end_token) labels[t] = kIgnoredLabel;
  }
  return labels;
}

constexpr int64_t kSymbols = 16;
constexpr int64_t kSteps = 60;

train::Config small_model(uint64_t seed) {
  train::Config config;
  config.num_layers = 1;
  config.vocab_size = kSymbols;
  config.batch_size = 8;
  config.lr = 1e-2;
  config.warmup_steps = 5;
  config.schedule_steps = kSteps;
  config.seed = seed;
  return config;
}

// Independent uniform symbols, of which 0 ends a document. No token is seen twice in a run, so
// there is nothing to learn: an honest model's loss stays at ln 16.
TokenStore uniform_tokens(const train::Config& config) {
  const RandomSequence random(config.seed, stream_of("uniform tokens"));
  TokenStoreBuilder builder(kSymbols, 0);
  std::vector<int32_t> document;
  const int64_t needed = 2 * (kSteps + 1) * config.batch_size * config.seq_len;
  for (int64_t i = 0; i < needed; ++i) {
    const auto symbol = static_cast<int32_t>(random.below(kSymbols, static_cast<uint64_t>(i)));
    if (symbol != 0) {
      document.push_back(symbol);
      continue;
    }
    builder.add_document(document);
    document.clear();
  }
  builder.add_document(document);
  return builder.finish();
}

class FreshTokens : public Experiment {
 public:
  explicit FreshTokens(const RunOptions& options)
      : config_(small_model(options.seed)), trainer_(config_, uniform_tokens(config_)) {}

  void step(int64_t step) override {
    loss_ = trainer_.step().loss;
    losses_.x.push_back(static_cast<double>(step));
    losses_.y.push_back(loss_);
    if (step == kSteps) probe_ = trainer_.probe_floor(32).loss;
  }
  State state() override { return trainer_.state(); }
  void load(const State& state) override { trainer_.load(state); }
  void report(Metrics& metrics) override {
    metrics.measure("loss", loss_);
    metrics.measure("loss on fresh tokens", probe_);
    metrics.add(losses_);
  }

 private:
  train::Config config_;
  train::Trainer trainer_;
  double loss_ = 0;
  double probe_ = 0;
  Curve losses_{"loss by step", {}, {}};
};

}  // namespace

FAULT(labels_no_shift) {
  Fault& fault = lab.fault(
      {.id = "labels.no-shift",
       .title = "Labels equal inputs: the model learns to copy",
       .domain = "data",
       .seed = "004 3.2",
       .mechanism =
           "A language model's label at t is token t + 1. Without the shift it is token t, which "
           "the model is given. Copying it through the residual stream solves the task, and the "
           "loss goes to 0. On fresh uniform tokens over 16 symbols no honest causal model can "
           "expect less than ln 16 = 2.772589, because the next token does not depend on "
           "anything seen.",
       .symptom =
           "The loss falls to almost nothing within some dozen steps, far below what the text "
           "allows, and the model generates its last token again and again.",
       .article_says =
           "A loss of zero is an illusion of mixed precision: the gradient scaler collapses and "
           "gradients are cut to zero.",
       .truth =
           "A collapsed scaler leaves the logged loss healthy until parameters are poisoned; the "
           "loss is computed before any gradient. A loss near 0 comes from the labels: not "
           "shifted, shifted in a way that shows the answer, or all ignored.",
       .fix = "Shift in exactly one place: the label at t is token t + 1. Say in the data's type "
              "whether it is shifted already.",
       .sources =
           {"transformers issue 27517 (2023-11-15): MBartForCausalLM does not shift, and training "
            "copies the input. https://github.com/huggingface/transformers/issues/27517",
            "transformers pull request 44642 (2026-03-12, fixes issue 32944): say who shifts. "
            "https://github.com/huggingface/transformers/pull/44642"},
       .look_alikes =
           "A mask that lets a position see the next token (attn.mask-broadcast) also sends the "
           "loss below what is possible; there the labels are the next tokens. Text that repeats "
           "itself has a low loss by right. Labels that are all ignored give a loss of 0 at once, "
           "or NaN (loss.log-zero). Refuted when one label differs from the token at its own "
           "place.",
       .exercise = "A byte model trained on English reports 0.03 nats per byte after 100 steps. "
                   "How many bits per byte is that, and why can it not be honest?",
       .answer = "0.03 / ln 2 = 0.043 bits per byte. The best compressors of English text need "
                 "about 1 bit per byte, so no model can expect to predict it twenty times better. "
                 "Probe it with random tokens: an honest model gets ln V, a copying one 0."});

  const char* reason =
      "a trained loss depends on the seed; below a tenth of ln 16 nothing but copying comes";
  fault.only_variant()
      .wrong([](Context& context) { return context.seams.replace<LabelSeam>(&own_tokens); })
      .run<FreshTokens>(kSteps)
      .remedy([](Context& context) {
        return context.seams.replace<LabelSeam>(&shifted_by_the_collator);
      })
      .expect_within("loss", 0, 0.277, reason)
      .expect_within("loss on fresh tokens", 0, 0.277, reason)
      .caught_by("labels.alignment")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
