#include <unistd.h>

#include "core/error.h"
#include "train/config.h"

namespace faultline::train {
namespace {

// All in doubles, which do not overflow; biases and norms left out.
double parameters(const nn::Gpt2Config& config) {
  const auto C = static_cast<double>(config.hidden_size);
  const double embeddings =
      static_cast<double>(config.vocab_size) + static_cast<double>(config.seq_len);
  // A block: query, key, value and output of the attention (4 C^2), the MLP (8 C^2).
  return C * embeddings + static_cast<double>(config.num_layers) * 12 * C * C;
}

double parameters(const nn::LlamaConfig& config) {
  const auto C = static_cast<double>(config.hidden_size);
  const auto D = static_cast<double>(config.head());
  const double embeddings =
      static_cast<double>(config.vocab_size) * (config.tie_embeddings ? 1 : 2);
  // A block: query and output, key and value, the three projections of the MLP.
  const double block = 2 * D * static_cast<double>(config.num_heads) +
                       2 * D * static_cast<double>(config.num_key_value_heads) +
                       3 * static_cast<double>(config.intermediate_size);
  return C * (embeddings + static_cast<double>(config.num_layers) * block);
}

double parameters(const Config& config) {
  return std::visit([](const auto& model) { return parameters(model); }, config.model());
}

void require_bytes(const Config& config, double bytes, const char* purpose) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  require(bytes <= memory,
          "memory: a model of {:.3g} parameters takes at least {:.3g} GB to {}, this machine has "
          "{:.3g} GB; choose a smaller num_layers, hidden_size, vocab_size, seq_len or batch_size",
          parameters(config), bytes / 1e9, purpose, memory / 1e9);
}

}  // namespace

void check_memory_to_generate(const Config& config) {
  require_bytes(config, sizeof(float) * parameters(config), "generate");
}

void check_memory_to_train(const Config& config) {
  const auto T = static_cast<double>(config.seq_len);
  const auto V = static_cast<double>(config.vocab_size);
  const double states = 4 * sizeof(float) * parameters(config);
  // Input, label and document of each position.
  const double tokens = 3 * sizeof(int32_t) * T * static_cast<double>(config.batch_size);
  const double logits = sizeof(float) * T * V * static_cast<double>(config.micro_batch());
  require_bytes(config, states + tokens + logits, "train");
}

}  // namespace faultline::train
