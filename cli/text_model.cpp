#include "cli/text_model.h"

#include <algorithm>

#include "train/open_tokenizer.h"

namespace faultline::cli {
namespace {

// Those of generation_config.json, else of config.json, else of the tokenizer.
std::vector<int32_t> end_ids_of(const train::ModelDirectory& source, const Tokenizer& tokenizer) {
  for (const SpecialTokens* tokens : {&source.generation.tokens, &source.config.tokens}) {
    if (!tokens->ends.empty()) return {tokens->ends.begin(), tokens->ends.end()};
  }
  if (const auto end = tokenizer.end_of_document()) return {*end};
  return {};
}

}  // namespace

bool TextModel::ends_with(int32_t id) const {
  return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end();
}

std::string TextModel::text_of(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!ends_with(id)) text += tokenizer->bytes_of(id);
  }
  return text;
}

TextModel open_text_model(const std::string& directory, const std::vector<std::string>& adapters) {
  TextModel result;
  result.source = train::open_model(directory, adapters);
  result.tokenizer = train::open_tokenizer(directory);
  result.end_ids = end_ids_of(result.source, *result.tokenizer);
  return result;
}

}  // namespace faultline::cli
