#pragma once

#include <string>
#include <string_view>

#include "core/dtype.h"
#include "io/json.h"
#include "io/json_fields.h"
#include "nn/llama.h"

// What the readers of one architecture's config.json share, and the configuration of a run with
// them; hf_config.h is for everybody else.
namespace faultline {

// Above any real size, and so small that no product of two overflows.
constexpr int64_t kMostOfAnySize = INT32_MAX;

// A size from 1; a number above 0; a number in [0, 1).
int64_t size(JsonFields& fields, std::string_view key, int64_t fallback);
double positive(JsonFields& fields, std::string_view key, double fallback);
double probability(JsonFields& fields, std::string_view key, double fallback);

// The key's value: "float32", "float16", "bfloat16".
std::string_view transformers_name(DType dtype);

// The object of rope_scaling or rope_parameters, where `positions` is max_position_embeddings.
// Throws InvalidArgument that names `source`, the key and what is wrong with it.
nn::RopeConfig read_rope(const Json& json, const std::string& source, int64_t positions);
// As rope_scaling has it, which warns about any other key: without theta.
Json rope_scaling_json(const nn::RopeConfig& rope);

nn::LlamaConfig read_llama(JsonFields& fields);
Json llama_json(const nn::LlamaConfig& model);

}  // namespace faultline
