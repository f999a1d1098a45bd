#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "train/lora.h"
#include "train/run.h"
#include "train/sampling.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Continues a text with the latest checkpoint of a run. Stops after --tokens bytes or where the "
    "model ends the document. The same seed gives the same text.\n"
    "Example: faultline generate run --prompt \"In the beginning \" --tokens 200 --seed 1";

struct GenerateOptions {
  std::string run;
  std::string adapter;
  std::string prompt;
  std::string json;
  int64_t tokens = 256;
  int64_t threads = 0;
  train::SamplingOptions sampling;
};

// Writes bytes as they come, whole characters at a time; what is not UTF-8 becomes U+FFFD.
class TextStream {
 public:
  explicit TextStream(std::FILE* out) : out_(out) {}
  void add(char byte) {
    pending_ += byte;
    if (!ends_inside_character()) flush();
  }
  void flush() {
    if (out_ != nullptr) {
      fmt::print(out_, "{}", repair_utf8(pending_).text);
      std::fflush(out_);
    }
    pending_.clear();
  }

 private:
  // Whether a lead byte among the last three announces more bytes than there are.
  bool ends_inside_character() const {
    for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
      if (byte < 0x80) return false;
      if (byte >= 0xc0) {
        const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
        return length > back;
      }
    }
    return false;
  }

  std::FILE* out_;
  std::string pending_;
};

std::unique_ptr<nn::Gpt2> load_model(const GenerateOptions& options, const train::Config& config) {
  auto model = std::make_unique<nn::Gpt2>(config.model(), config.seed);
  note_ignored(train::load_run(*model, config, options.run, options.adapter).ignored);
  model->set_training(false);
  return model;
}

int generate(const GenerateOptions& options) {
  require(options.tokens >= 0, "generate: --tokens must not be negative, got {}", options.tokens);
  require(options.threads >= 0 && options.threads <= 4096,
          "generate: --threads must be in [1, 4096], got {}", options.threads);
  options.sampling.check();
  require(!options.prompt.empty(),
          "generate: the prompt is empty; the model continues a text, so give it at least one "
          "character");
  const train::Config config = train::read_record(options.run).config.build();
  train::check_memory_to_generate(config);
  Context context({.threads = static_cast<int>(options.threads), .seed = config.seed});
  const ContextGuard guard(context);
  const auto model = load_model(options, config);

  const std::vector<int32_t> prompt = ByteTokenizer().encode(options.prompt);
  const bool quiet = options.json == "-";
  const auto requested = static_cast<int64_t>(prompt.size());
  const int64_t used = std::min(requested, config.seq_len);
  if (used < requested) {
    fmt::print(stderr,
               "note: the prompt has {} tokens, the model sees {} at a time; the first {} are "
               "left out\n",
               requested, config.seq_len, requested - used);
  }
  TextStream stream(quiet ? nullptr : stdout);
  for (const char byte : options.prompt) stream.add(byte);
  stream.flush();

  const auto start = std::chrono::steady_clock::now();
  train::NextByte next(*model, options.sampling);
  std::vector<int32_t> ids = prompt;
  while (static_cast<int64_t>(ids.size()) < requested + options.tokens) {
    ids.push_back(next(ids));
    if (ids.back() == ByteTokenizer::kEndOfDocument) break;
    stream.add(static_cast<char>(ids.back()));
  }
  stream.flush();
  if (!quiet) fmt::print("\n");
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const std::vector<int32_t> made(ids.begin() + requested, ids.end());
  const Json sizes =
      Json::object().set("requested", requested).set("used", used).set("dropped", requested - used);
  write_json(options.json,
             Json::object()
                 .set("prompt", repair_utf8(options.prompt).text)
                 .set("text", repair_utf8(ByteTokenizer().decode(made)).text)
                 .set("tokens", Json::array_of(made))
                 .set("context", sizes)
                 .set("tokens_per_s", static_cast<double>(made.size()) / std::max(seconds, 1e-9)));
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", kHelp);
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("DIR", options->run, "Directory of a run")->required();
  command->add_option("--adapter", options->adapter,
                      "A directory with a PEFT adapter for the run's model");
  command->add_option("--prompt", options->prompt, "The text to continue")->required();
  command->add_option("--tokens", options->tokens, "At most so many bytes (default 256)")
      ->check(whole_number<int64_t>());
  command->add_option("--seed", options->sampling.seed, "Of the random choices (default 1)")
      ->check(whole_number<uint64_t>());
  command->add_option("--temperature", options->sampling.temperature,
                      "Below 1 safer, above 1 wilder, 0 always the likeliest (default 1)");
  command
      ->add_option("--top-k", options->sampling.top_k,
                   "Only the K likeliest bytes; 0 is all of them (default)")
      ->check(whole_number<int64_t>());
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = generate(*options); });
}

}  // namespace faultline::cli
