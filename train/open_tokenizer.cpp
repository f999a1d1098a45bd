#include "train/open_tokenizer.h"

#include <filesystem>
#include <optional>

#include "data/bpe_tokenizer.h"
#include "io/byte_tokenizer_file.h"
#include "io/hf_model.h"
#include "train/run.h"

namespace faultline::train {
namespace {

// What the directory says of its model in the words of Hugging Face; nothing for a run that began
// from a preset.
std::optional<HfConfig> described_model(const std::string& directory) {
  if (is_hf_folder(directory)) return read_hf_folder_config(directory);
  const RunRecord record = read_record(directory);
  if (record.architecture.is(Json::Kind::null)) return std::nullopt;
  return read_hf_config(record.architecture, directory + "/config.json: architecture");
}

// Where DIRECTORY/config.json says it.
std::string config_key(const std::string& directory, const char* key) {
  const char* within = is_hf_folder(directory) ? "" : "architecture: ";
  return fmt::format("{}/config.json: {}{}", directory, within, key);
}

void check_ends(const std::vector<int64_t>& ends, const Tokenizer& tokenizer,
                const std::string& key, const std::string& file) {
  for (const int64_t end : ends) {
    require(end < tokenizer.vocab_size(),
            "{} is {}, and {} has the ids 0 to {}; name the id that ends a text there", key, end,
            file, tokenizer.vocab_size() - 1);
  }
}

// The tokenizer of `file` gives no id that the model does not have, and has those that end a text.
void check_vocabulary(const Tokenizer& tokenizer, const std::string& file, const HfConfig& model,
                      const std::string& directory) {
  require(tokenizer.vocab_size() <= model.vocab_size(),
          "{} has {} ids, and {} is {}: the model knows nothing of the last {}; put the tokenizer "
          "there that belongs to these weights",
          file, tokenizer.vocab_size(), config_key(directory, "vocab_size"), model.vocab_size(),
          tokenizer.vocab_size() - model.vocab_size());
  check_ends(model.tokens.ends, tokenizer, config_key(directory, "eos_token_id"), file);
  check_ends(read_generation_config(directory, model.vocab_size()).tokens.ends, tokenizer,
             directory + "/generation_config.json: eos_token_id", file);
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& directory) {
  const std::optional<HfConfig> model = described_model(directory);
  if (!model) return std::make_unique<ByteTokenizer>();
  const std::string file = directory + "/tokenizer.json";
  const bool found = std::filesystem::exists(file);
  require(found || std::filesystem::exists(directory + "/vocab.json"),
          "'{}' has no tokenizer.json, nor vocab.json and merges.txt; copy them from where the "
          "model came from",
          directory);
  if (found && is_byte_tokenizer(file)) {
    auto bytes = std::make_unique<ByteTokenizer>();
    check_vocabulary(*bytes, file, *model, directory);
    return bytes;
  }
  auto tokenizer = std::make_unique<BpeTokenizer>(BpeTokenizer::load(directory));
  check_vocabulary(*tokenizer, found ? file : directory + "/vocab.json", *model, directory);
  if (!model->tokens.ends.empty()) {
    tokenizer->set_end_of_document(static_cast<int32_t>(model->tokens.ends.front()));
  }
  return tokenizer;
}

}  // namespace faultline::train
