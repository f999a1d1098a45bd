#pragma once

#include <string>

#include "data/token_store.h"
#include "train/config.h"
#include "train/run.h"

namespace faultline::cli {

struct TextData {
  TokenStore tokens;
  train::DataRecord record;
};

// The text of `path`, or the default corpus for "", as byte tokens. What there is to say about it
// goes to standard error.
TextData load_text(const std::string& path, const train::Config& config);

}  // namespace faultline::cli
