#pragma once

#include <memory>
#include <vector>

#include "nn/attention.h"
#include "nn/language_model.h"
#include "nn/rope.h"

namespace faultline::nn {

// Llama 2 and 3 (Touvron et al. 2023; Llama team 2024).
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t seq_len = 2048;  // positions that the model was made for
  int64_t num_layers = 2;
  int64_t num_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t hidden_size = 128;
  int64_t head_size = 0;  // 0: hidden_size / num_heads
  int64_t intermediate_size = 344;
  double rms_norm_epsilon = 1e-5;
  RopeConfig rope;
  bool tie_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double dropout = 0;
  double init_std = 0.02;

  int64_t head() const { return head_size != 0 ? head_size : hidden_size / num_heads; }
  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

class LlamaBlock;

// Parameter names: embed_tokens.weight, layers.N.self_attn.{q,k,v,o}_proj.weight,
// layers.N.mlp.{gate,up,down}_proj.weight, layers.N.{input,post_attention}_layernorm.weight,
// norm.weight and, unless tied, lm_head.weight.
class Llama : public LanguageModel {
 public:
  // Parameters normal(0, init_std), norms 1, biases 0; each has a random stream named after it.
  Llama(const LlamaConfig& config, uint64_t seed);
  ~Llama() override;

  Tensor forward(const ModelInput& input) override;
  ModelShape model_shape() const override;
  DropoutKey& dropout_key() override { return dropout_key_; }
  const LlamaConfig& config() const { return config_; }

 private:
  void initialize(uint64_t seed);

  LlamaConfig config_;
  DropoutKey dropout_key_;
  Embedding embed_tokens_;
  std::vector<std::unique_ptr<LlamaBlock>> blocks_;
  RmsNorm norm_;
  std::unique_ptr<Linear> lm_head_;  // null: tied to embed_tokens
};

}  // namespace faultline::nn
