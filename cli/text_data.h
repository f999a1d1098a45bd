#pragma once

#include <string>

#include "data/tokenizer.h"
#include "train/config.h"
#include "train/run.h"

namespace faultline::cli {

struct TextData {
  TokenStore tokens;
  train::DataRecord record;
};

// The text of `path`, or the default corpus for "", as ids of `tokenizer`. What there is to say
// about it goes to standard error.
TextData load_text(const std::string& path, const train::Config& config,
                   const Tokenizer& tokenizer);

}  // namespace faultline::cli
