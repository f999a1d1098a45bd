#include <algorithm>
#include <memory>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/kv_cache.h"
#include "nn/lora_trace.h"
#include "nn/repetition.h"
#include "train/generation.h"
#include "train/lora.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the tokenizer has no padding token and borrows the end's, and the collator takes
// every label of that id away.
std::vector<int32_t> no_padding_labels(const TokenRow& row) {
  std::vector<int32_t> labels = LabelSeam::standard(row);
  std::replace(labels.begin(), labels.end(), row.end_token, kIgnoredLabel);
  return labels;
}
// page: end

// What people do: they go by the length of each row, and put the ends within it back.
std::vector<int32_t> ends_put_back(const TokenRow& row) {
  std::vector<int32_t> labels = no_padding_labels(row);
  for (int64_t t = 1; t < row.length; ++t) {
    if (row.tokens[t] == row.end_token) labels[t - 1] = row.end_token;
  }
  return labels;
}

constexpr int32_t kAnswerLength = 8;  // every document is 1, 2, ..., 8
constexpr int64_t kTuningSteps = 60;

// Endless: 1, 2, ..., 8, 1, 2, ... in the base's text; one document each in the adapter's.
TokenStore counting(int64_t repeats) {
  std::vector<int32_t> document;
  for (int64_t i = 0; i < repeats; ++i) {
    for (int32_t id = 1; id <= kAnswerLength; ++id) document.push_back(id);
  }
  TokenStoreBuilder builder(16, 0);
  for (int64_t i = 0; i < 400 / repeats; ++i) builder.add_document(document);
  return builder.finish();
}

train::Config counting_model(uint64_t seed) {
  train::Config config;
  config.num_layers = 1;
  config.vocab_size = 16;
  config.batch_size = 8;
  config.lr = 1e-2;
  config.warmup_steps = 5;
  config.schedule_steps = kTuningSteps;
  config.seed = seed;
  return config;
}

// Somebody else's base, which goes on for ever; made on a Context of its own, as it was long ago.
std::unique_ptr<nn::LanguageModel> endless_base(const train::Config& config) {
  State learned;
  {
    Context elsewhere(ContextOptions{.threads = 1, .seed = config.seed});
    const ContextGuard guard(elsewhere);
    train::Trainer trainer(config, counting(50));
    for (int64_t i = 0; i < kTuningSteps; ++i) trainer.step();
    learned = trainer.model().state();
    for (auto& [name, tensor] : learned.tensors) tensor = clone(tensor.detach());
  }
  auto model = nn::make_model(config.model(), config.seed);
  model->load(learned);
  return model;
}

train::Config with_adapter(train::Config config) {
  config.lora = "r=8,alpha=16";
  return config;
}

// Fine-tunes the base on documents that end, and lets it write one.
class TunesToStop : public Experiment {
 public:
  explicit TunesToStop(const RunOptions& options)
      : config_(with_adapter(counting_model(options.seed))),
        trainer_(config_, counting(1), endless_base(counting_model(options.seed))) {}

  void step(int64_t) override { trainer_.step(); }
  State state() override { return trainer_.state(); }
  void load(const State& state) override { trainer_.load(state); }

  void report(Metrics& metrics) override {
    const std::vector<int32_t> text = answer();
    nn::LanguageModel& model = trainer_.model();
    const nn::ModelShape& shape = model.model_shape();
    nn::ContiguousKvCache cache({.num_layers = shape.num_layers,
                                 .batch = 1,
                                 .num_heads = shape.num_key_value_heads,
                                 .head_size = shape.head_size,
                                 .capacity = config_.seq_len});
    const nn::RepetitionReport report = nn::locate_repetition(model, text, 1, cache);
    metrics.count("end labels", static_cast<double>(end_labels()));
    metrics.count("tokens written", static_cast<double>(text.size()));
    metrics.count("repeated tail", static_cast<double>(report.repetition.repeated_tail));
    metrics.measure("repeated 4-grams", report.repetition.share);
    metrics.count("places where the cache differs",
                  report.origin == nn::RepetitionOrigin::data ? 0 : 1);
    add_trace(metrics, text);
  }

 private:
  // Among the labels of four documents in one row.
  static int64_t end_labels() {
    std::vector<int32_t> row;
    for (int i = 0; i < 4; ++i) {
      for (int32_t id = 1; id <= kAnswerLength; ++id) row.push_back(id);
      row.push_back(0);
    }
    const auto labels = Context::current().seams.call<LabelSeam>(
        TokenRow{row, static_cast<int64_t>(row.size()), 0});
    return std::count(labels.begin(), labels.end(), 0);
  }

  // The likeliest text that begins with 1, until the end token or until the model is full.
  std::vector<int32_t> answer() {
    const train::Request request{
        .prompt = {1}, .tokens = config_.seq_len - 1, .sampling = {.temperature = 0}};
    const train::GenerationOptions options{.end_ids = {0}};
    std::vector<int32_t> text =
        train::generate(trainer_.model(), {&request, 1}, options).rows[0].tokens;
    text.insert(text.begin(), 1);
    if (text.back() == 0) text.pop_back();
    return text;
  }

  // How much each adapter adds to its layer, in the order of the forward pass.
  void add_trace(Metrics& metrics, const std::vector<int32_t>& text) {
    const auto length = static_cast<int64_t>(text.size());
    Curve added{"|s B A x| / |W x| by layer", {}, {}};
    for (const nn::AdapterDelta& delta : nn::trace_adapters(
             trainer_.model(), {.tokens_BT = tensor(text, {1, length}), .mask = {}})) {
      added.x.push_back(static_cast<double>(added.x.size()));
      added.y.push_back(delta.ratio());
    }
    metrics.add(added);
  }

  train::Config config_;
  train::Trainer trainer_;
};

}  // namespace

FAULT(lora_repetition) {
  Fault& fault = lab.fault(
      {.id = "lora.repetition",
       .title = "A fine-tuned model repeats itself, because the end was never a label",
       .domain = "adapters",
       .seed = "004 2.5",
       .mechanism =
           "A base goes on for ever; a fine-tuning is to teach it to stop. The tokenizer has no "
           "padding token and borrows the end's id, and the collator masks every label of that id, "
           "so the end of each document is never a target. The adapter learns everything else. The "
           "base here writes 1, 2, ..., 8, 1, 2, ... and is tuned on documents 1, 2, ..., 8, end. "
           "With the ends masked 0 of 4 ends in a row are labels, and the model writes until it is "
           "full: 32 tokens in place of 8, of which the last 16 repeat the 16 before. Run with and "
           "without a cache its blocks agree at every position: what it does, it learned.",
       .symptom =
           "After fine-tuning, answers are right and do not end: they begin again, up to the "
           "limit of tokens. The loss looked fine.",
       .article_says =
           "Duplicate tokens come from a reused KV cache (or from alignment, dtypes and lengths, "
           "its earlier sections); they are found by counting token ids in a kernel trace.",
       .truth =
           "No kernel carries a token id, and a token that occurs twice is ordinary text. What "
           "tells the causes apart is one comparison: run the text with the cache and without. If "
           "all blocks agree, data or weights are to blame, here the labels; if they part from some "
           "layer and position on, the cache or the rotary angles are. How much each adapter adds "
           "to its layer is worth a look as well: a wrong scale shows there.",
       .fix = "Mask padding by position, or give it an id of its own. Before the first step count "
              "how often each id is a label; the end must be there once a document.",
       .sources =
           {"transformers issue 23530 (2023-05-20): the collator masks all end tokens where the pad "
            "token is the end token. https://github.com/huggingface/transformers/issues/23530",
            "trl issue 976 (2023-11-09): models that never generate the end token. "
            "https://github.com/huggingface/trl/issues/976"},
       .look_alikes =
           "Cached keys at wrong positions, or rotary angles of another convention: text that "
           "repeats too, but a pass without the cache differs. An adapter with too large a scale. "
           "Greedy decoding of a base that was never taught to stop. Refuted when the end is a "
           "label in the first batch.",
       .exercise = "A text of 32 tokens is 1, 2, ..., 8 four times. What share of its 4-grams "
                   "repeats an earlier one?",
       .answer = "It has 29 4-grams, of which 8 are different: 1 - 8 / 29 = 72 %."});

  fault.only_variant()
      .wrong([](Context& context) { return context.seams.replace<LabelSeam>(&no_padding_labels); })
      .run<TunesToStop>(kTuningSteps)
      .remedy([](Context& context) { return context.seams.replace<LabelSeam>(&ends_put_back); })
      .expect("end labels", 0)
      .expect("tokens written", 32)
      .expect("repeated tail", 16)
      .expect("repeated 4-grams", 1 - 8.0 / 29)  // of 29 in the text 8 are different
      .caught_by("labels.alignment")
      // A verse ends every 142 bytes: eight of them within some ten steps.
      .in_training({.steps = 200, .needs = {{"documents", "verse"}, {"lora", "r=4,alpha=8"}}});
}

}  // namespace faultline::lab
