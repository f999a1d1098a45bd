// Teaches: adapters. A small GPT learns the King James Bible. Frozen, it then learns with some more
// weights to write every vowel as an e; merged into it, they cost nothing any more.
#include <algorithm>
#include <cmath>

#include "data/tokenizer.h"
#include "data/utf8.h"
#include "example.h"
#include "nn/lora.h"
#include "train/generation.h"
#include "train/loss_text.h"
#include "train/trainer.h"

using namespace faultline;

// The key `lora` freezes the model of the preset tiny and trains an adapter on all its layers.
train::ConfigBuilder tiny_with_adapter() {
  train::ConfigBuilder config = train::ConfigBuilder::preset("tiny");
  for (const char* setting : {"lora=r=8,alpha=16", "lr=5e-3", "warmup_steps=10"}) {
    config.assign(setting, "preset finetune_lora");
  }
  return config;
}

void finetune(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.about = "An adapter teaches a frozen GPT to write with one vowel.",
                      .steps = 300,
                      .config = tiny_with_adapter(),
                      .asked_later = {nn::LoraMergeSeam::name}},
                     &finetune);
}

Corpus bible(const train::Config& config) {
  CorpusOptions options;
  if (!config.documents.empty()) options.documents = documents_from_name(config.documents);
  return default_corpus(options);
}

TokenStore with_one_vowel(Corpus corpus) {
  for (std::string& text : corpus.documents) {
    std::replace_if(
        text.begin(), text.end(),
        [](char c) { return c == 'a' || c == 'i' || c == 'o' || c == 'u'; }, 'e');
  }
  return ByteTokenizer().tokenize(corpus);
}

// Weights of the model after 600 steps without an adapter, in a Context of its own: --fault and
// --watch are for the adapter.
State trained_base(train::Config config) {
  Context context({.seed = config.seed});
  const ContextGuard guard(context);
  config.lora = "";
  train::Trainer trainer(config, ByteTokenizer().tokenize(bible(config)));
  for (int i = 0; i < 600; ++i) trainer.step();
  fmt::print("base: {} nats per byte\n", train::loss_text(trainer.evaluate(/*batches=*/20)));
  return trainer.model().state();
}

std::string continued(nn::LanguageModel& model, uint64_t seed) {
  const train::Request request{.prompt = ByteTokenizer().encode("And "),
                               .tokens = 40,
                               .sampling = {.seed = seed, .temperature = 0.5}};
  const train::GenerationOptions options{.end_ids = {ByteTokenizer::kEndOfDocument}};
  const train::Generation made = train::generate(model, {&request, 1}, options);
  return repair_utf8("And " + ByteTokenizer().decode(made.rows[0].tokens)).text;
}

void finetune(Example& example) {
  const train::Config& config = example.config();
  const State base = trained_base(config);
  train::Trainer trainer(config, with_one_vowel(bible(config)));
  nn::LanguageModel& model = trainer.model();
  nn::load_base(model, base);
  const nn::TrainableSet set = nn::trainable_set(model);
  fmt::print("{} weights are trained, {} are frozen\n", set.trained, set.frozen);
  fmt::print("one vowel before: {} nats per byte\n",
             train::loss_text(trainer.evaluate(/*batches=*/20)));
  while (example.next_step()) example.log(trainer.step());
  const double after = trainer.evaluate(/*batches=*/20);
  fmt::print("one vowel after: {} nats per byte\n", train::loss_text(after));
  if (!std::isfinite(after)) return;  // nothing to write with

  fmt::print("with the adapter: {}\n", continued(model, example.seed()));
  nn::activate(model, {});
  fmt::print("without it:       {}\n", continued(model, example.seed()));
  nn::activate(model, {"default"});
  nn::merge_adapters(model, nn::Originals::drop);
  fmt::print("merged:           {}\n", continued(model, example.seed()));
}
