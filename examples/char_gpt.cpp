// Teaches: the Trainer. A small GPT learns the King James Bible byte by byte, and then writes.
#include <cmath>

#include "data/tokenizer.h"
#include "data/utf8.h"
#include "example.h"
#include "nn/gpt2.h"
#include "train/generation.h"
#include "train/loss_text.h"
#include "train/trainer.h"

using namespace faultline;

// The preset char, made smaller so that it takes seconds: every key can be set so. What is given by
// a preset is not the user's choice, and --fault may set what it needs.
train::ConfigBuilder small_gpt() {
  train::ConfigBuilder config = train::ConfigBuilder::preset("char");
  for (const char* setting : {"num_layers=2", "hidden_size=64", "seq_len=64", "batch_size=8",
                              "lr=3e-3", "warmup_steps=20", "schedule_steps=300"}) {
    config.assign(setting, "preset char_gpt");
  }
  return config;
}

void train_gpt(Example& example);
int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.about = "A GPT learns bytes of text, then writes.", .steps = 300, .config = small_gpt()},
      &train_gpt);
}

std::string continued(nn::LanguageModel& model, const std::string& prompt, int64_t bytes,
                      uint64_t seed) {
  const train::Request request{.prompt = ByteTokenizer().encode(prompt),
                               .tokens = bytes,
                               .sampling = {.seed = seed, .temperature = 0.7}};
  const train::GenerationOptions options{.end_ids = {ByteTokenizer::kEndOfDocument}};
  const train::Generation made = train::generate(model, {&request, 1}, options);
  return repair_utf8(prompt + ByteTokenizer().decode(made.rows[0].tokens)).text;
}

// The King James Bible, cut into documents as the configuration says.
Corpus bible(const train::Config& config) {
  CorpusOptions options;
  if (!config.documents.empty()) options.documents = documents_from_name(config.documents);
  return default_corpus(options);
}

void train_gpt(Example& example) {
  const train::Config& config = example.config();
  train::Trainer trainer(config, ByteTokenizer().tokenize(bible(config)));
  fmt::print("{} parameters\n", trainer.model().parameter_count());
  while (example.next_step()) example.log(trainer.step());
  const double held_out = trainer.evaluate(/*batches=*/20);
  fmt::print("held-out text: {} nats per byte\n", train::loss_text(held_out));
  if (!std::isfinite(held_out)) return;  // nothing to write with
  fmt::print("{}\n", continued(trainer.model(), "And God said", 80, example.seed()));
}
