#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "cli/text_model.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "data/utf8.h"
#include "data/utf8_stream.h"
#include "train/generation.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Continues a text with the latest checkpoint of a run, or with a Hugging Face folder, whose "
    "generation_config.json gives the defaults of the sampling flags. Stops after --tokens tokens "
    "or where the model ends the document. The same seed gives the same text.\n"
    "Example: faultline generate run --prompt \"In the beginning \" --tokens 200 --seed 1\n"
    "Example: cat text | faultline generate run --prompt - --temperature 0.8 --top-p 0.95";

struct GenerateOptions {
  std::string run;
  std::string adapter;
  std::string prompt;
  std::string json;
  std::string context_policy = "keep-tail";
  std::string kv_cache = "f32";
  std::string kv_pages = "off";
  int64_t sinks = 4;
  int64_t tokens = 256;
  int64_t threads = 0;
  uint64_t seed = 1;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
};

// What the user set, else what generation_config.json says, else our own defaults.
train::SamplingOptions sampling_of(const GenerateOptions& options, const GenerationConfig& config) {
  train::SamplingOptions sampling{.seed = options.seed};
  const bool likeliest = config.do_sample.has_value() && !*config.do_sample;
  sampling.temperature =
      options.temperature.value_or(likeliest ? 0 : config.temperature.value_or(1));
  sampling.top_k = options.top_k.value_or(config.top_k.value_or(0));
  sampling.top_p = options.top_p.value_or(config.top_p.value_or(1));
  sampling.check();
  return sampling;
}

// The text to continue: `given`, or standard input where that is "-".
std::string prompt_of(const std::string& given) {
  std::string text = given;
  if (given == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  const std::string where = given == "-" ? "standard input" : "--prompt";
  require(!text.empty(),
          "generate: the prompt is empty ({}); the model continues a text, so give it at least one "
          "character",
          where);
  const Utf8Repair repair = repair_utf8(text);
  require(repair.replaced == 0,
          "generate: {} is not UTF-8: the byte 0x{:02x} at offset {} belongs to no character; "
          "convert the text first, as iconv does",
          where,
          static_cast<unsigned char>(
              text[static_cast<size_t>(std::max<int64_t>(0, repair.first_offset))]),
          repair.first_offset);
  return text;
}

train::KvStorage storage_of(const GenerateOptions& options) {
  using Kind = train::KvStorage::Kind;
  const bool pages = options.kv_pages == "on";
  if (options.kv_cache == "off") {
    require(!pages, "generate: --kv-pages on needs a cache; leave out --kv-cache off");
    return {.kind = Kind::none};
  }
  return {.kind = pages ? Kind::paged : Kind::contiguous,
          .dtype = dtype_from_name(options.kv_cache)};
}

// What the model does not see of the prompt, on standard error.
void note_dropped(const nn::ContextFit& context, nn::ContextPolicy policy) {
  for (const nn::TokenRange& range : context.dropped) {
    fmt::print(
        stderr,
        "note: the prompt has {} tokens, the model sees {} of them ({}): tokens {} to {} are "
        "left out\n",
        context.requested, context.used, nn::name(policy), range.begin, range.end - 1);
  }
}

Json ranges_of(const std::vector<nn::TokenRange>& ranges) {
  Json list = Json::array();
  for (const nn::TokenRange& range : ranges) {
    list.push(Json::array_of(std::vector<int64_t>{range.begin, range.end}));
  }
  return list;
}

Json answer_of(const std::string& prompt, const TextModel& model, const train::Generation& made,
               nn::ContextPolicy policy) {
  const train::Continuation& row = made.rows[0];
  const nn::ContextFit& context = row.context;
  return Json::object()
      .set("prompt", prompt)
      .set("text", repair_utf8(model.text_of(row.tokens)).text)
      .set("tokens", Json::array_of(row.tokens))
      .set("context", Json::object()
                          .set("requested", context.requested)
                          .set("used", context.used)
                          .set("dropped", context.requested - context.used))
      .set("context_policy", std::string(nn::name(policy)))
      .set("dropped_ranges", ranges_of(context.dropped))
      .set("recomputed_contexts", made.recomputed)
      .set("stopped", row.ending == train::Ending::end_id ? "end" : "tokens")
      .set("tokens_per_s", made.tokens_per_second());
}

// Generates and shows each token as it comes, unless the answer goes to standard output.
int run(const GenerateOptions& options, const std::string& prompt, TextModel& model) {
  nn::LanguageModel& network = *model.source.model;
  train::GenerationOptions how{.policy = nn::context_policy_from_name(options.context_policy),
                               .sinks = options.sinks,
                               .storage = storage_of(options),
                               .end_ids = model.end_ids,
                               .usable_ids = model.tokenizer->vocab_size()};
  const train::Request request{.prompt = model.tokenizer->encode_prompt(prompt),
                               .tokens = options.tokens,
                               .sampling = sampling_of(options, model.source.generation)};
  note_dropped(train::context_of(network, request, how), how.policy);
  const bool quiet = options.json == "-";
  Utf8Stream stream;
  how.on_token = [&](size_t, int32_t id) {
    if (!quiet && !model.ends_with(id)) show(stream.add(model.tokenizer->bytes_of(id)));
  };
  if (!quiet) show(prompt);
  const train::Generation made = train::generate(network, {&request, 1}, how);
  if (!quiet) show(stream.finish() + "\n");
  write_json(options.json, answer_of(prompt, model, made, how.policy));
  return 0;
}

int generate(const GenerateOptions& options) {
  require(options.tokens >= 0, "generate: --tokens must not be negative, got {}", options.tokens);
  require(options.threads >= 0 && options.threads <= 4096,
          "generate: --threads must be in [1, 4096], got {}", options.threads);
  const std::string prompt = prompt_of(options.prompt);
  Context context({.threads = static_cast<int>(options.threads), .seed = options.seed});
  const ContextGuard guard(context);
  TextModel model = open_text_model(options.run, options.adapter);
  note_ignored(model.source.ignored);
  std::shared_ptr<void> policy;
  if (model.source.record) policy = model.source.record->config.build().apply_attention_policy();
  return run(options, prompt, model);
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", kHelp);
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("DIR", options->run, "A run, or a Hugging Face folder")->required();
  command->add_option("--adapter", options->adapter,
                      "A directory with a PEFT adapter for the model");
  command->add_option("--prompt", options->prompt, "The text to continue; - reads standard input")
      ->required();
  command->add_option("--tokens", options->tokens, "At most so many tokens (default 256)")
      ->check(whole_number<int64_t>());
  command->add_option("--seed", options->seed, "Of the random choices (default 1)")
      ->check(whole_number<uint64_t>());
  command->add_option("--temperature", options->temperature,
                      "Below 1 safer, above 1 wilder, 0 always the likeliest (default 1)");
  command
      ->add_option("--top-k", options->top_k,
                   "Only the K likeliest tokens; 0 is all of them (default)")
      ->check(whole_number<int64_t>());
  command->add_option("--top-p", options->top_p,
                      "Only the likeliest tokens that make up this share (default 1: all)");
  command->add_option("--context-policy", options->context_policy,
                      "What the model sees of a text longer than its context: keep-tail (default, "
                      "slides on), sink+tail (the first tokens stay too), keep-head, or error");
  command->add_option("--sinks", options->sinks, "First tokens that sink+tail keeps (default 4)")
      ->check(whole_number<int64_t>());
  command
      ->add_option("--kv-cache", options->kv_cache,
                   "How keys and values are kept between tokens: f32 (default), f16, bf16, or off")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "off"}));
  command
      ->add_option("--kv-pages", options->kv_pages,
                   "Keep them in pages of 16 tokens: on, or off (default)")
      ->check(CLI::IsMember({"on", "off"}));
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = generate(*options); });
}

}  // namespace faultline::cli
