#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "data/bpe_tokenizer.h"
#include "io/mapped_file.h"
#include "train/open_tokenizer.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Turns a text into ids with a tokenizer.json or the tokenizer of a run, and back to see that "
    "nothing was lost.\n"
    "Example: faultline tokenize folder text.txt\n"
    "Example: faultline tokenize folder text.txt --json ids.json";

struct TokenizeOptions {
  std::string tokenizer;
  std::string text;
  std::string json;
};

std::string hex(std::string_view bytes) {
  std::string result;
  for (const char byte : bytes) {
    result += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return result;
}

// The ids as text: each with what it stands for, quoted.
void print(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  constexpr size_t kShown = 200;
  for (size_t i = 0; i < std::min(ids.size(), kShown); ++i) {
    fmt::print("{} {}\n", ids[i], json_quoted(tokenizer.bytes_of(ids[i])));
  }
  if (ids.size() > kShown) fmt::print("... {} more; --json writes all\n", ids.size() - kShown);
}

// A folder's tokenizer is opened alone: its model may be one that is not known here.
std::unique_ptr<Tokenizer> open(const std::string& path) {
  std::error_code none;
  const bool is_run = std::filesystem::is_directory(path + "/checkpoints", none);
  if (is_run) return train::open_tokenizer(path);
  return std::make_unique<BpeTokenizer>(BpeTokenizer::load(path));
}

int tokenize(const TokenizeOptions& options) {
  const std::unique_ptr<Tokenizer> opened = open(options.tokenizer);
  const Tokenizer& tokenizer = *opened;
  const MappedFile file = map_file(options.text);
  const std::string_view text = file.text();
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  if (options.json != "-") {
    print(tokenizer, ids);
    fmt::print("{} bytes, {} ids; the ids give {}\n", text.size(), ids.size(),
               back == text ? "the same bytes back" : "OTHER bytes back");
  }
  write_json(options.json, Json::object()
                               .set("tokens", Json::array_of(ids))
                               .set("bytes", hex(back))
                               .set("lossless", back == text));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("tokenize", kHelp);
  auto options = std::make_shared<TokenizeOptions>();
  command
      ->add_option("TOKENIZER", options->tokenizer,
                   "A run, a tokenizer.json, or a folder with one or with vocab.json and "
                   "merges.txt")
      ->required();
  command->add_option("TEXT", options->text, "A file")->required();
  command->add_option("--json", options->json,
                      "Write ids and the bytes they give back as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = tokenize(*options); });
}

}  // namespace faultline::cli
