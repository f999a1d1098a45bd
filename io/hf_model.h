#pragma once

#include <memory>
#include <string>

#include "io/hf_config.h"
#include "io/safetensors.h"
#include "nn/language_model.h"

namespace faultline {

// A model that a Hugging Face folder holds.
struct HfModel {
  HfConfig config;
  std::unique_ptr<nn::LanguageModel> model;  // f32, in training mode
};

// Whether `folder` holds a config.json of that kind. A file that is no JSON is not of that kind.
bool is_hf_folder(const std::string& folder);

// Reads FOLDER/config.json; see read_hf_config. Throws when this machine's memory cannot hold the
// weights, before anything is allocated.
HfConfig read_hf_folder_config(const std::string& folder);

// Throws InvalidArgument, beginning with `source`, when this machine's memory cannot hold the
// weights in f32.
void check_hf_memory(const HfConfig& config, const std::string& source);

// A model of that configuration whose parameters are to be loaded: they are zeros.
std::unique_ptr<nn::LanguageModel> make_hf_model(const HfConfig& config, uint64_t seed);

// Reads the configuration and the weights; `seed` is for what is random later (dropout). Everything
// is checked before a parameter is allocated. Throws InvalidArgument naming file and key; IoError
// when a file cannot be read.
HfModel load_hf_model(const std::string& folder, uint64_t seed = 1);

struct HfSaveOptions {
  int64_t shard_bytes = int64_t{5} << 30;
  BetweenTensors between = {};  // what it throws ends the writing, see write_safetensors
};

// Writes config.json, generation_config.json and the weights, which are f32, into `folder`, which
// exists.
void save_hf_model(const std::string& folder, HfConfig config, const GenerationConfig& generation,
                   const State& state, const HfSaveOptions& options = {});

}  // namespace faultline
