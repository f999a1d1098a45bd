#include <algorithm>

#include "autograd/functional.h"
#include "lab/case.h"
#include "train/generation.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: padding has the id of the end token, and every label of that id is masked.
std::vector<int32_t> ends_masked(const TokenRow& row) {
  std::vector<int32_t> labels = LabelSeam::standard(row);
  std::replace(labels.begin(), labels.end(), row.end_token, kIgnoredLabel);
  return labels;
}
// page: end

// The remedy: the first end token after text is no padding, and is a label again.
std::vector<int32_t> first_end_restored(const TokenRow& row) {
  std::vector<int32_t> labels = ends_masked(row);
  for (int64_t t = 0; t + 1 < row.length; ++t) {
    if (row.tokens[t] == row.end_token) continue;
    if (row.tokens[t + 1] == row.end_token) labels[t] = row.end_token;
  }
  return labels;
}

// Documents that all read 1, 2, ..., 8, each ended by 0.
constexpr int32_t kLast = 8;
constexpr int64_t kEndSteps = 60;

std::vector<int32_t> one_to_eight() { return {1, 2, 3, 4, 5, 6, 7, kLast}; }

TokenStore short_documents() {
  TokenStoreBuilder builder(16, 0);
  for (int i = 0; i < 400; ++i) builder.add_document(one_to_eight());
  return builder.finish();
}

train::Config document_model(uint64_t seed) {
  train::Config config;
  config.num_layers = 1;
  config.vocab_size = 16;
  config.batch_size = 8;
  config.lr = 1e-2;
  config.warmup_steps = 5;
  config.schedule_steps = kEndSteps;
  config.seed = seed;
  return config;
}

// Learns these documents, and then writes one.
class LearnsToStop : public Experiment {
 public:
  explicit LearnsToStop(const RunOptions& options)
      : config_(document_model(options.seed)), trainer_(config_, short_documents()) {}

  void step(int64_t step) override {
    trainer_.step();
    ends_.x.push_back(static_cast<double>(step));
    ends_.y.push_back(probability_of_the_end());
  }
  State state() override { return trainer_.state(); }
  void load(const State& state) override { trainer_.load(state); }

  void report(Metrics& metrics) override {
    metrics.count("end labels", static_cast<double>(end_labels()));
    metrics.count("tokens written", static_cast<double>(tokens_before_it_stops()));
    metrics.measure("p(end)", probability_of_the_end());
    metrics.add(ends_);
  }

 private:
  // Among the labels of four documents in one row.
  static int64_t end_labels() {
    std::vector<int32_t> row;
    for (int i = 0; i < 4; ++i) {
      for (const int32_t id : one_to_eight()) row.push_back(id);
      row.push_back(0);
    }
    const auto labels = Context::current().seams.call<LabelSeam>(
        TokenRow{row, static_cast<int64_t>(row.size()), 0});
    return std::count(labels.begin(), labels.end(), 0);
  }

  // The likeliest continuation of 1, until the end token or until the model has no place left.
  int64_t tokens_before_it_stops() {
    const train::Request request{
        .prompt = {1}, .tokens = config_.seq_len - 1, .sampling = {.temperature = 0}};
    const train::GenerationOptions options{.end_ids = {0}};
    const train::Continuation text =
        train::generate(trainer_.model(), {&request, 1}, options).rows[0];
    const int64_t ends = text.ending == train::Ending::end_id ? 1 : 0;
    return 1 + std::ssize(text.tokens) - ends;
  }

  // After a whole document.
  double probability_of_the_end() {
    const NoGrad off;
    const nn::EvaluationMode evaluation(trainer_.model());
    const Tensor logits_1TV = trainer_.model()(tensor(one_to_eight(), {1, kLast}), nn::Mask{});
    return softmax(slice(logits_1TV, 1, kLast - 1, kLast)).to_vector<double>()[0];
  }

  train::Config config_;
  train::Trainer trainer_;
  Curve ends_{"probability of the end after a whole document, by step", {}, {}};
};

}  // namespace

FAULT(labels_eos_masked) {
  Fault& fault = lab.fault(
      {.id = "labels.eos-masked",
       .title = "The end token is never a label: the model never stops",
       .domain = "data",
       .mechanism =
           "A tokenizer without a padding token borrows the end token's id, and the collator masks "
           "every label of the padding id. The end of each document is masked with it. softmax "
           "pushes the logit of a class down wherever it is not the label, which is now "
           "everywhere. On documents 1, 2, ..., 8 of which each has 8 labels, 7 remain; the end's "
           "probability after 8 goes to 0 in place of 1, and generation runs to its limit of 32 "
           "tokens where it should stop after 8.",
       .symptom = "The loss looks fine, even a little better. Generated answers do not end: they "
                  "are cut at the limit, run into a next question, or repeat.",
       .truth = "The mask is right for padding and wrong for the one end token before it; by id "
                "alone they cannot be told apart. No curve of training shows it, because a label "
                "that is masked has no loss.",
       .fix = "Mask by position (the attention mask, or the length), never by id; or give padding "
              "an id of its own. Count how often the end token is a label.",
       .sources =
           {"transformers issue 23530 (2023-05-20): the collator masks all end tokens where the "
            "pad token is the end token. https://github.com/huggingface/transformers/issues/23530",
            "trl issue 976 (2023-11-09): models that never generate the end token. "
            "https://github.com/huggingface/trl/issues/976",
            "transformers issue 22794 (2023-06-20, comment): the same found in examples. "
            "https://github.com/huggingface/transformers/issues/22794"},
       .look_alikes =
           "Text that holds no end token at all (none was appended) shows the same, with nothing "
           "masked. A limit on generated tokens that is too small cuts answers that would end. "
           "Greedy decoding that runs into a loop does not end either, although ends were labels. "
           "Refuted when one label of a batch is the end token.",
       .exercise = "A batch holds 4 documents of 10 tokens each, their ends included, padded to 16 "
                   "with the end token. How many labels does the wrong mask leave, how many are "
                   "right?",
       .answer = "Each document has 9 labels: 8 tokens and the end. Wrong: 4 * 8 = 32. Right: "
                 "4 * 9 = 36. The difference is exactly one label a document."});

  const char* reason =
      "a trained probability depends on the seed; a model that learns the end gives it over 0.9";
  fault.only_variant()
      .wrong([](Context& context) { return context.seams.replace<LabelSeam>(&ends_masked); })
      .run<LearnsToStop>(kEndSteps)
      .remedy(
          [](Context& context) { return context.seams.replace<LabelSeam>(&first_end_restored); })
      .expect("end labels", 0)
      .expect("tokens written", 32)
      .expect_within("p(end)", 0, 0.05, reason)
      .caught_by("labels.alignment")
      // A verse ends every 142 bytes: eight of them within some ten steps.
      .in_training({.steps = 200, .needs = {{"documents", "verse"}}});
}

}  // namespace faultline::lab
