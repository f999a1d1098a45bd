#pragma once

#include <memory>
#include <vector>

#include "nn/attention.h"

namespace faultline::nn {

// How GELU is computed: by the tanh formula, as in GPT-2, or by the error function.
enum class Gelu : uint8_t { tanh, erf };

struct Gpt2Config {
  int64_t vocab_size = 50304;
  int64_t seq_len = 1024;  // positions that the model knows
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t hidden_size = 768;
  double dropout = 0;
  double init_std = 0.02;
  double layer_norm_epsilon = 1e-5;
  Gelu gelu = Gelu::tanh;
  int64_t window = 0;  // keys that a position sees, itself included; 0: all

  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

// The nonlinearity of the MLP.
struct ActivationSeam {
  static constexpr const char* name = "activation";
  using Signature = Tensor(const Tensor& x, Gelu form);
  static Tensor standard(const Tensor& x, Gelu form) {
    return form == Gelu::erf ? gelu_erf(x) : gelu(x);
  }
};

// proj(gelu(fc(x))), without the residual.
class Mlp : public Module {
 public:
  Mlp(int64_t hidden_size, Gelu form);
  Tensor operator()(const Tensor& x_BTC);

 private:
  Gelu form_;
  Linear fc_;
  Linear proj_;
};

// Pre-norm Transformer block.
class Block : public Module {
 public:
  Block(const Gpt2Config& config, const DropoutKey& key);
  Tensor operator()(const Tensor& x_BTC, const ModelInput& input, int64_t layer);

 private:
  LayerNorm ln_1_;
  SelfAttention attn_;
  LayerNorm ln_2_;
  Mlp mlp_;
  Dropout dropout_1_;
  Dropout dropout_2_;
};

// GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, head tied to the token
// embedding.
class Gpt2 : public LanguageModel {
 public:
  // Parameters are initialised as in GPT-2: normal(0, init_std), the projections that end a
  // residual branch divided by sqrt(2 num_layers), biases 0, norms 1. Each parameter has a random
  // stream of its own, named after it.
  Gpt2(const Gpt2Config& config, uint64_t seed, Start start = Start::random);

  // Throws InvalidArgument for a position that is not below seq_len.
  Tensor forward(const ModelInput& given) override;
  ModelShape model_shape() const override;

  const Gpt2Config& config() const { return config_; }
  DropoutKey& dropout_key() override { return dropout_key_; }

 private:
  void initialize(uint64_t seed);

  Gpt2Config config_;
  DropoutKey dropout_key_;
  Embedding wte_;
  Embedding wpe_;
  Dropout dropout_;
  std::vector<std::unique_ptr<Block>> blocks_;
  LayerNorm ln_f_;
};

}  // namespace faultline::nn
