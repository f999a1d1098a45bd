#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train/model_directory.h"

namespace faultline::cli {

// A model that continues text: with its tokenizer, and the ids that end a text.
struct TextModel {
  train::ModelDirectory source;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;

  bool ends_with(int32_t id) const;
  // The bytes of the ids without those that end a text.
  std::string text_of(const std::vector<int32_t>& ids) const;
};

// Opens a run or a Hugging Face folder, with PEFT adapters. Throws as train::open_model
// does, and InvalidArgument when there is no tokenizer.
TextModel open_text_model(const std::string& directory, const std::vector<std::string>& adapters);

}  // namespace faultline::cli
