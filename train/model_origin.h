#pragma once

#include <map>
#include <memory>
#include <string>

#include "io/hf_config.h"
#include "train/run.h"

namespace faultline::train {

// The model of a run that began from a Hugging Face folder, and what the run keeps of the folder.
// All of it is empty for a run whose keys say everything.
struct ModelOrigin {
  std::unique_ptr<nn::LanguageModel> model;
  Json architecture;                         // for RunRecord
  std::map<std::string, std::string> files;  // for create_run: tokenizer, generation_config.json
};

// The keys that a folder decides, with `source` as where they came from; a run from it trains on
// sequences of at most 1,024 tokens unless seq_len is set.
ConfigBuilder keys_of(const HfConfig& folder, const std::string& source);

// A run that begins from the weights of `folder`. Throws InvalidArgument when the configuration has
// other sizes than the folder, or the folder's tokenizer is not known here.
ModelOrigin begin_from(const std::string& folder, const ConfigBuilder& keys);

// The same for a run that goes on: an untrained model.
ModelOrigin origin_of(const RunRecord& record, const std::string& directory, uint64_t seed);

}  // namespace faultline::train
