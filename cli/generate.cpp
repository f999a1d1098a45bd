#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/one_of.h"
#include "cli/terminal.h"
#include "cli/text_model.h"
#include "cli/text_report.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "data/text_decoder.h"
#include "data/utf8.h"
#include "diagnose/verdict.h"
#include "lab/catalogue.h"
#include "train/generation.h"
#include "train/prompt_loss.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Continues a text with the latest checkpoint of a run, or with a Hugging Face folder, whose "
    "generation_config.json gives the defaults of the sampling flags: as in transformers, a folder "
    "without do_sample takes the likeliest token unless --temperature is given. Stops after "
    "--tokens tokens or where the model ends the document. The same seed gives the same text.\n"
    "Example: faultline generate run --prompt \"In the beginning \" --tokens 200 --seed 1\n"
    "Example: cat text | faultline generate run --prompt - --temperature 0.8 --top-p 0.95";

constexpr int64_t kMostPageSlots = 4096;

struct GenerateOptions {
  std::string fault;
  std::string watch;
  std::string beside;
  std::string after;
  std::string prompt_loss = "off";
  std::string context = "0";
  std::string run;
  std::vector<std::string> adapters;
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

// Flags that say among which tokens to draw, where nothing is drawn.
void note_likeliest(const GenerateOptions& options, const GenerationConfig& config) {
  const bool likeliest = !options.temperature && config.do_sample == false;
  if (!likeliest || !(options.top_k || options.top_p)) return;
  fmt::print(stderr,
             "note: the model takes the likeliest token (do_sample), so --top-k and --top-p change "
             "nothing; add --temperature 1 to sample\n");
}

// Throws unless `text` is something that a model can read; `where` says where it came from.
void check_text(const std::string& text, const std::string& where) {
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
}

// The text to continue: `given`, or standard input where that is "-".
std::string prompt_of(const std::string& given) {
  std::string text = given;
  if (given == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  check_text(text, given == "-" ? "standard input" : "--prompt");
  return text;
}

// The values of --kv-pages.
CLI::Validator pages_or_switch() {
  return {[](const std::string& text) -> std::string {
            const int64_t slots = faultline::whole_number<int64_t>(text).value_or(0);
            if (text == "on" || text == "off" || (slots >= 1 && slots <= kMostPageSlots)) return "";
            return fmt::format(
                "'{}' is none of on, off, and a page's number of tokens from 1 to {}", text,
                kMostPageSlots);
          },
          ""};
}

int64_t page_slots_of(const GenerateOptions& options) {
  if (options.kv_pages == "off") return 0;
  return options.kv_pages == "on" ? 16
                                  : faultline::whole_number<int64_t>(options.kv_pages).value_or(0);
}

train::KvStorage storage_of(const GenerateOptions& options) {
  using Kind = train::KvStorage::Kind;
  const int64_t slots = page_slots_of(options);
  if (options.kv_cache == "off") {
    require(slots == 0, "generate: --kv-pages {} needs a cache; leave out --kv-cache off",
            options.kv_pages);
    return {.kind = Kind::none};
  }
  train::KvStorage storage{.kind = slots > 0 ? Kind::paged : Kind::contiguous,
                           .dtype = dtype_from_name(options.kv_cache)};
  if (slots > 0) storage.page_slots = slots;
  return storage;
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

// Lets the prompt's pages be those of a text that was continued before.
void keep_prefixes(const nn::LanguageModel& model, int64_t slots, train::KvStorage& storage) {
  constexpr int64_t kSlots = 4096;  // of all texts together
  require(slots > 0, "generate: --after needs --kv-pages: whole pages are used again");
  const nn::ModelShape shape = model.model_shape();
  const int64_t pages = (kSlots + 2 * shape.seq_len) / slots + 2;
  const nn::PageShape page{shape.num_layers, shape.num_key_value_heads, shape.head_size, slots};
  storage.pool = std::make_shared<nn::PagePool>(page, pages, size_of(storage.dtype));
  storage.prefixes = std::make_shared<nn::PrefixCache>(storage.pool, kSlots / slots);
  storage.weights = "the model";
}

// One continuation of a prompt, shown as it comes unless the answer goes to standard output.
class Run {
 public:
  Run(const GenerateOptions& options, const std::string& prompt, TextModel& model)
      : options_(options),
        prompt_(prompt),
        model_(model),
        how_{.policy = nn::context_policy_from_name(options.context_policy),
             .sinks = options.sinks,
             .positions = faultline::whole_number<int64_t>(options.context).value_or(0),
             .storage = storage_of(options),
             .end_ids = model.end_ids,
             .usable_ids = model.tokenizer->vocab_size()} {
    requests_.push_back(request_of(prompt));
    if (!options.beside.empty()) requests_.push_back(request_of(options.beside));
  }

  // The answer, without what detectors say.
  Json go() {
    note_dropped(train::context_of(*model_.source.model, requests_[0], how_), how_.policy);
    const bool quiet = options_.json == "-";
    if (options_.prompt_loss == "on") show_prompt_loss(quiet);
    if (!options_.after.empty()) go_before();
    TextDecoder decoder;
    how_.on_token = [&](size_t row, int32_t id) {
      if (row > 0 || quiet || model_.ends_with(id)) return;
      print_at_once(decoder.add(model_.tokenizer->bytes_of(id)));
    };
    if (!quiet) print_at_once(prompt_);
    const train::Generation made = train::generate(*model_.source.model, requests_, how_);
    text_ = requests_[0].prompt;
    text_.insert(text_.end(), made.rows[0].tokens.begin(), made.rows[0].tokens.end());
    if (!quiet) print_at_once(decoder.finish() + "\n");
    return answer_of(prompt_, model_, made, how_.policy);
  }

  // Of what go() made.
  TextReport report() const {
    const auto prompt = static_cast<int64_t>(requests_[0].prompt.size());
    return TextReport(*model_.source.model, text_, prompt);
  }

 private:
  train::Request request_of(const std::string& text) const {
    return {.prompt = model_.tokenizer->encode_prompt(text),
            .tokens = options_.tokens,
            .sampling = sampling_of(options_, model_.source.generation)};
  }

  void show_prompt_loss(bool quiet) const {
    const train::PromptLoss found =
        train::prompt_loss(*model_.source.model, model_.tokenizer->encode_prompt(prompt_));
    fmt::print(quiet ? stderr : stdout, "the prompt: {:.4f} nats per token, gradient norm {:.4g}\n",
               found.loss, found.gradient_norm);
  }

  // Continues the other text by a token, which fills its pages.
  void go_before() {
    keep_prefixes(*model_.source.model, page_slots_of(options_), how_.storage);
    train::Request before = request_of(options_.after);
    before.tokens = 1;
    train::generate(*model_.source.model, {&before, 1}, how_);
  }

  const GenerateOptions& options_;
  const std::string& prompt_;
  TextModel& model_;
  train::GenerationOptions how_;
  std::vector<train::Request> requests_;
  std::vector<int32_t> text_;  // the prompt and what came of it
};

// The flags that a fault may need, by their names: where the value is kept, and what the user gave.
struct Setting {
  std::string* value;
  const CLI::Option* given;

  bool is_set() const { return given->count() > 0 || !value->empty(); }
};
using Settings = std::map<std::string, Setting>;

// Sets what the fault needs; throws where the user set it otherwise.
void apply_needs(const lab::Variant& fault, const Settings& settings) {
  for (const auto& [flag, needed] : fault.generation().needs) {
    const Setting& setting = settings.at(flag);
    if (*setting.value == needed) continue;
    require(setting.given->count() == 0,
            "--fault {}: it shows only with --{} {}, and you set {}; leave that out",
            fault.full_name(), flag, needed, *setting.value);
    fmt::print(stderr, "{} needs --{} {}\n", fault.full_name(), flag, needed);
    *setting.value = needed;
  }
}

Json detections_of(const diagnose::Watch& watch) {
  Json list = Json::array();
  for (const diagnose::Detection& found : watch.findings().ranked()) {
    list.push(diagnose::to_json(found));
  }
  return list;
}

// A generation under watch, and with it a fault where one was asked for.
void run_watched(const GenerateOptions& options, const std::string& prompt, TextModel& model,
                 const lab::Variant* fault) {
  Context& context = Context::current();
  const std::string level = options.watch.empty() ? fault ? "full" : "off" : options.watch;
  const diagnose::Watch watch(context, diagnose::watch_level_from_name(level));
  const std::shared_ptr<void> planted = fault ? fault->plant(context) : nullptr;
  if (fault) fmt::print(stderr, "planted: {}\n", fault->full_name());
  const auto judge = [&] {
    if (watch.level() == diagnose::WatchLevel::off) return;
    fmt::print(options.json == "-" ? stderr : stdout, "{}", diagnose::verdict_text(watch));
  };
  try {
    Run run(options, prompt, model);
    Json answer = run.go();
    judge();
    const bool asked = fault || watch.level() != diagnose::WatchLevel::off;
    if (asked) answer.set("detections", detections_of(watch));
    if (fault) answer.set("planted", fault->full_name());
    if (watch.level() == diagnose::WatchLevel::deep) {
      const TextReport report = run.report();
      fmt::print(options.json == "-" ? stderr : stdout, "{}", report.text());
      report.add_to(answer);
    }
    write_json(options.json, answer);
  } catch (const Error&) {
    judge();
    throw;
  }
}

int generate(GenerateOptions& options, const Settings& settings) {
  require(options.tokens >= 0, "generate: --tokens must not be negative, got {}", options.tokens);
  require(options.threads >= 0 && options.threads <= 4096,
          "generate: --threads must be in [1, 4096], got {}", options.threads);
  std::optional<lab::Catalogue> catalogue;
  const lab::Variant* fault = nullptr;
  if (!options.fault.empty()) {
    fault = &catalogue.emplace().find(options.fault);
    apply_needs(*fault, settings);
  }
  const std::string prompt = prompt_of(options.prompt);
  if (settings.at("beside").is_set()) check_text(options.beside, "--beside");
  if (settings.at("after").is_set()) check_text(options.after, "--after");
  Context context({.threads = static_cast<int>(options.threads), .seed = options.seed});
  const ContextGuard guard(context);
  TextModel model = open_text_model(options.run, options.adapters);
  print_notes(model.source.notes);
  note_likeliest(options, model.source.generation);
  std::shared_ptr<void> policy;
  if (model.source.record) policy = model.source.record->config.build().apply_attention_policy();
  run_watched(options, prompt, model, fault);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", kHelp);
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("DIR", options->run, "A run, or a Hugging Face folder")->required();
  command
      ->add_option("--adapter", options->adapters,
                   "A directory with a PEFT adapter for the model; repeated, they add up")
      ->allow_extra_args(false);
  command->add_option("--prompt", options->prompt, "The text to continue; - reads standard input")
      ->required();
  command->add_option("--tokens", options->tokens, "At most so many tokens (default 256)")
      ->check(whole_number<int64_t>());
  command->add_option("--seed", options->seed, "Of the random choices (default 1)")
      ->check(whole_number<uint64_t>());
  command->add_option("--temperature", options->temperature,
                      "Below 1 safer, above 1 wilder, 0 always the likeliest (default 1 for a run, "
                      "for a folder what it says, else 0)");
  command
      ->add_option("--top-k", options->top_k,
                   "Only the K likeliest tokens; 0 is all of them (default for a run; a folder "
                   "that samples and does not say takes 50)")
      ->check(whole_number<int64_t>());
  command->add_option("--top-p", options->top_p,
                      "Only the likeliest tokens that make up this share (default 1: all)");
  command->add_option("--context-policy", options->context_policy,
                      "What the model sees of a text longer than its context: keep-tail (default, "
                      "slides on), sink+tail (the first tokens stay too), keep-head, or error");
  command->add_option("--sinks", options->sinks, "First tokens that sink+tail keeps (default 4)")
      ->check(whole_number<int64_t>());
  const CLI::Option* cache =
      command
          ->add_option("--kv-cache", options->kv_cache,
                       "How keys and values are kept between tokens: f32 (default), f16, bf16, or "
                       "off")
          ->check(one_of({"f32", "f16", "bf16", "off"}));
  const CLI::Option* pages =
      command
          ->add_option("--kv-pages", options->kv_pages,
                       "Keep them in pages: on (of 16 tokens), the tokens of a page, or off "
                       "(default)")
          ->check(pages_or_switch());
  const CLI::Option* positions =
      command
          ->add_option("--context", options->context,
                       "At most so many of the positions that the model knows (default 0: all)")
          ->check(whole_number<int64_t>());
  const CLI::Option* beside = command->add_option(
      "--beside", options->beside,
      "A text that is continued in the same batch and not shown; the answer does not depend on it");
  const CLI::Option* after =
      command->add_option("--after", options->after,
                          "A text that is continued first; where the prompt begins alike, the keys "
                          "of its whole pages are used again");
  const CLI::Option* loss =
      command
          ->add_option("--prompt-loss", options->prompt_loss,
                       "on: also the prompt's loss and the norm of its gradient")
          ->check(one_of({"on", "off"}));
  command->add_option("--watch", options->watch,
                      "off (default), light, full (default with --fault) or deep: detectors watch, "
                      "and say what they found; deep also says what each adapter adds to its "
                      "layer, and whether a cache makes the text repeat itself");
  command->add_option("--fault", options->fault,
                      "ID[:VARIANT] of a fault to plant; see faultline lab --list");
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  const Settings settings = {
      {"kv-cache", {&options->kv_cache, cache}},   {"kv-pages", {&options->kv_pages, pages}},
      {"context", {&options->context, positions}}, {"beside", {&options->beside, beside}},
      {"after", {&options->after, after}},         {"prompt-loss", {&options->prompt_loss, loss}}};
  command->callback([options, settings, &exit_code] { exit_code = generate(*options, settings); });
}

}  // namespace faultline::cli
