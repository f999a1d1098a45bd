#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"
#include "io/json.h"
#include "tests/io/scratch_directory.h"

namespace faultline {

inline std::string golden_path(const std::string& name) {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/tests/golden/" + name;
}

// What tests/golden/make_tokenizer_golden.py wrote.
struct TokenizerGolden {
  Json file = Json::parse(content_of(golden_path("tokenizer_golden.json")), "golden");

  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const Json& text : file.at("texts").items()) texts.push_back(text.text());
    return texts;
  }
  std::vector<int32_t> ids(const std::string& tokenizer, size_t text) const {
    std::vector<int32_t> ids;
    for (const Json& id : file.at(tokenizer).items().at(text).items()) {
      ids.push_back(static_cast<int32_t>(id.integer()));
    }
    return ids;
  }
};

}  // namespace faultline
