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
  int64_t seq_len = 2048;  // positions that the model was made for; it takes more, see Llama
  int64_t num_layers = 2;
  int64_t num_heads = 4;
  int64_t num_key_value_heads = 4;  // query head h reads key head h / (num_heads / this)
  int64_t hidden_size = 128;
  int64_t head_size = 0;  // 0: hidden_size / num_heads
  int64_t intermediate_size = 344;
  double rms_norm_epsilon = 1e-5;
  RopeConfig rope;
  bool tie_embeddings = false;
  bool attention_bias = false;  // of the four projections
  bool mlp_bias = false;        // of the three
  double dropout = 0;           // of the embeddings, the attention weights and both branches
  double init_std = 0.02;
  int64_t window = 0;  // keys that a position sees, itself included; 0: all

  int64_t head() const { return head_size != 0 ? head_size : hidden_size / num_heads; }
  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

class LlamaBlock;

// Pre-norm blocks of rotary grouped-query attention and a gated MLP, normalised by RMSNorm.
// Parameter names are those of Hugging Face's files without "model.": embed_tokens.weight,
// layers.N.self_attn.{q,k,v,o}_proj.weight, layers.N.mlp.{gate,up,down}_proj.weight,
// layers.N.{input,post_attention}_layernorm.weight, norm.weight and, unless tied, lm_head.weight.
class Llama : public LanguageModel {
 public:
  // Parameters normal(0, init_std), norms 1, biases 0; each has a random stream named after it.
  Llama(const LlamaConfig& config, uint64_t seed, Start start = Start::random);
  ~Llama() override;

  // Takes inputs longer than seq_len, as transformers does: every position has its angles. What a
  // model says beyond the length of its training is another matter; whoever generates chooses a
  // limit. Throws InvalidArgument when a cache is to grow beyond the original positions of
  // dynamic_ntk, which turns all keys anew while cached ones are turned already.
  Tensor forward(const ModelInput& given) override;
  ModelShape model_shape() const override;
  DropoutKey& dropout_key() override { return dropout_key_; }
  const LlamaConfig& config() const { return config_; }

 private:
  void initialize(uint64_t seed);
  RopeTables rope_tables(const ModelInput& input) const;

  LlamaConfig config_;
  DropoutKey dropout_key_;
  Embedding embed_tokens_;
  Dropout dropout_;
  std::vector<std::unique_ptr<LlamaBlock>> blocks_;
  RmsNorm norm_;
  std::unique_ptr<Linear> lm_head_;  // null: tied to embed_tokens
};

}  // namespace faultline::nn
