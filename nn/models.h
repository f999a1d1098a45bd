#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "nn/gpt2.h"
#include "nn/llama.h"

namespace faultline::nn {

// The configuration of any model that there is.
using ModelConfig = std::variant<Gpt2Config, LlamaConfig>;

// The untrained model of a configuration. Throws InvalidArgument naming the first impossible value.
std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed);

}  // namespace faultline::nn
