#pragma once

#include <optional>
#include <string>
#include <variant>

#include "core/dtype.h"
#include "io/generation_config.h"
#include "io/json.h"
#include "nn/models.h"

namespace faultline {

// What config.json of a Hugging Face folder says: the model, in the spelling of transformers 4 or 5
// (rope_scaling or rope_parameters, torch_dtype or dtype).
struct HfConfig {
  nn::ModelConfig model;
  SpecialTokens tokens;
  std::optional<DType> dtype;  // of the weights in the folder

  // The class in transformers: GPT2LMHeadModel or LlamaForCausalLM.
  const char* architecture() const;
  // The key of the number of layers, for errors: n_layer or num_hidden_layers.
  const char* layers_key() const;
  int64_t num_layers() const;
  int64_t vocab_size() const;
};

// Whether `json` is such a configuration at all: it names an architecture or a model_type.
bool is_hf_config(const Json& json);

// Reads a configuration; `source` names the file in errors. Absent keys have the defaults of
// transformers. Refused, naming key and value: another architecture, a value of the wrong kind or
// beyond what a model can have, values that contradict each other, and every key that changes what
// a model computes in a way that ours does not, also when we do not know it. Allocates nothing.
HfConfig read_hf_config(const Json& json, const std::string& source);

// The configuration as a file holds it, for transformers 4 and 5. Throws InvalidArgument when it
// cannot say what the model computes.
Json hf_config_json(const HfConfig& config);

}  // namespace faultline
