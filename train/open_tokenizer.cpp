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
  if (found && is_byte_tokenizer(file)) return std::make_unique<ByteTokenizer>();
  auto tokenizer = std::make_unique<BpeTokenizer>(BpeTokenizer::load(directory));
  if (!model->tokens.ends.empty()) {
    tokenizer->set_end_of_document(static_cast<int32_t>(model->tokens.ends.front()));
  }
  return tokenizer;
}

}  // namespace faultline::train
