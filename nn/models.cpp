#include "nn/models.h"

namespace faultline::nn {

std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, uint64_t seed) {
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&config)) {
    return std::make_unique<Gpt2>(*gpt2, seed);
  }
  return std::make_unique<Llama>(std::get<LlamaConfig>(config), seed);
}

}  // namespace faultline::nn
