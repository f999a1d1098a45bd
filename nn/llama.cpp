#include "nn/llama.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/rng.h"

// Shapes: B batch, T positions, C hidden size, I intermediate size, V vocabulary, H query heads,
// G key-value heads, D head size.
namespace faultline::nn {

void LlamaConfig::check() const {
  const auto positive = [](int64_t value, const char* key) {
    require(value > 0, "{}: must be positive, got {}", key, value);
  };
  positive(vocab_size, "vocab_size");
  positive(seq_len, "seq_len");
  positive(num_layers, "num_layers");
  positive(num_heads, "num_heads");
  positive(num_key_value_heads, "num_key_value_heads");
  positive(hidden_size, "hidden_size");
  positive(intermediate_size, "intermediate_size");
  require(head_size >= 0, "head_size: must be positive, or 0 for hidden_size / num_heads, got {}",
          head_size);
  require(head_size != 0 || hidden_size % num_heads == 0,
          "num_heads: {} heads do not divide hidden_size {} ({} mod {} = {}); choose a divisor",
          num_heads, hidden_size, hidden_size, num_heads, hidden_size % num_heads);
  require(num_heads % num_key_value_heads == 0,
          "num_key_value_heads: {} query heads cannot share {} key-value heads ({} mod {} = {}); "
          "choose a divisor of {}",
          num_heads, num_key_value_heads, num_heads, num_key_value_heads,
          num_heads % num_key_value_heads, num_heads);
  require(head() % 2 == 0,
          "{}: rotary positions turn the elements of a head in pairs, so its size must be even, "
          "got {}",
          head_size != 0 ? "head_size" : "hidden_size / num_heads", head());
  require(window >= 0, "window: must not be negative, got {}; 0 is none", window);
  require(dropout >= 0 && dropout < 1, "dropout: must be in [0, 1), got {}", dropout);
  require(rms_norm_epsilon > 0 && std::isfinite(rms_norm_epsilon),
          "rms_norm_epsilon: must be positive, got {}", rms_norm_epsilon);
  require(init_std > 0 && std::isfinite(init_std), "init_std: must be positive, got {}", init_std);
  rope.check();
}

namespace {

Bias bias_if(bool wanted) { return wanted ? Bias::yes : Bias::no; }

const LlamaConfig& checked(const LlamaConfig& config) {
  config.check();
  return config;
}

class LlamaAttention : public Module {
 public:
  LlamaAttention(const LlamaConfig& config, const DropoutKey& key)
      : head_size_(config.head()),
        layout_(config.rope.layout),
        q_proj_(config.hidden_size, config.num_heads * config.head(),
                bias_if(config.attention_bias)),
        k_proj_(config.hidden_size, config.num_key_value_heads * config.head(),
                bias_if(config.attention_bias)),
        v_proj_(config.hidden_size, config.num_key_value_heads * config.head(),
                bias_if(config.attention_bias)),
        o_proj_(config.num_heads * config.head(), config.hidden_size,
                bias_if(config.attention_bias)),
        weights_dropout_(config.dropout, key) {
    add_child("q_proj", q_proj_);
    add_child("k_proj", k_proj_);
    add_child("v_proj", v_proj_);
    add_child("o_proj", o_proj_);
    add_child("dropout", weights_dropout_);
  }

  Tensor operator()(const Tensor& x_BTC, const RopeTables& tables, const ModelInput& input,
                    int64_t layer) {
    return unit([&] {
      const int64_t B = x_BTC.size(0);
      const int64_t T = x_BTC.size(1);
      const auto heads = [&](const Tensor& projected) {
        return permute(reshape(projected, {B, T, -1, head_size_}), {0, 2, 1, 3});
      };
      const auto turned = [&](const Tensor& x) { return rotary(x, tables, layout_); };
      const Tensor q_BHTD = turned(heads(q_proj_(x_BTC)));
      // A cache holds keys that are turned already, so that each is turned once.
      KvCache::All all{turned(heads(k_proj_(x_BTC))), heads(v_proj_(x_BTC))};
      if (input.cache != nullptr) all = input.cache->append(layer, all.k_BGKD, all.v_BGKD);
      const Tensor y_BHTD = Context::current().seams.call<SelfAttentionSeam>(
          q_BHTD, all.k_BGKD, all.v_BGKD, input.mask,
          AttentionOptions{.dropout = weights_dropout_.use_now()});
      return o_proj_(reshape(permute(y_BHTD, {0, 2, 1, 3}), {B, T, -1}));
    });
  }

 private:
  int64_t head_size_;
  RopeLayout layout_;
  Linear q_proj_;
  Linear k_proj_;
  Linear v_proj_;
  Linear o_proj_;
  Dropout weights_dropout_;
};

// down(silu(gate(x)) * up(x))
class LlamaMlp : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config)
      : gate_proj_(config.hidden_size, config.intermediate_size, bias_if(config.mlp_bias)),
        up_proj_(config.hidden_size, config.intermediate_size, bias_if(config.mlp_bias)),
        down_proj_(config.intermediate_size, config.hidden_size, bias_if(config.mlp_bias)) {
    add_child("gate_proj", gate_proj_);
    add_child("up_proj", up_proj_);
    add_child("down_proj", down_proj_);
  }

  Tensor operator()(const Tensor& x_BTC) {
    return unit([&] { return down_proj_(swiglu(gate_proj_(x_BTC), up_proj_(x_BTC))); });
  }

 private:
  Linear gate_proj_;
  Linear up_proj_;
  Linear down_proj_;
};

}  // namespace

class LlamaBlock : public Module {
 public:
  LlamaBlock(const LlamaConfig& config, const DropoutKey& key)
      : input_layernorm_(config.hidden_size, config.rms_norm_epsilon),
        self_attn_(config, key),
        post_attention_layernorm_(config.hidden_size, config.rms_norm_epsilon),
        mlp_(config),
        dropout_1_(config.dropout, key),
        dropout_2_(config.dropout, key) {
    add_child("input_layernorm", input_layernorm_);
    add_child("self_attn", self_attn_);
    add_child("post_attention_layernorm", post_attention_layernorm_);
    add_child("mlp", mlp_);
    add_child("dropout_1", dropout_1_);
    add_child("dropout_2", dropout_2_);
  }

  Tensor operator()(const Tensor& x_BTC, const RopeTables& tables, const ModelInput& input,
                    int64_t layer) {
    return unit([&] {
      const SeamTable& seams = Context::current().seams;
      const Tensor attended_BTC = seams.call<ResidualSeam>(
          x_BTC, dropout_1_(self_attn_(input_layernorm_(x_BTC), tables, input, layer)));
      return seams.call<ResidualSeam>(attended_BTC,
                                      dropout_2_(mlp_(post_attention_layernorm_(attended_BTC))));
    });
  }

 private:
  RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  RmsNorm post_attention_layernorm_;
  LlamaMlp mlp_;
  Dropout dropout_1_;
  Dropout dropout_2_;
};

Llama::Llama(const LlamaConfig& config, uint64_t seed, Start start)
    : config_(checked(config)),
      dropout_key_(seed),
      embed_tokens_(config.vocab_size, config.hidden_size),
      dropout_(config.dropout, dropout_key_),
      norm_(config.hidden_size, config.rms_norm_epsilon) {
  add_child("embed_tokens", embed_tokens_);
  add_child("dropout", dropout_);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    blocks_.push_back(std::make_unique<LlamaBlock>(config, dropout_key_));
    add_child("layers." + std::to_string(i), *blocks_.back());
  }
  add_child("norm", norm_);
  if (!config.tie_embeddings) {
    lm_head_ = std::make_unique<Linear>(config.hidden_size, config.vocab_size, Bias::no);
    add_child("lm_head", *lm_head_);
  }
  if (start == Start::random) initialize(seed);
}

Llama::~Llama() = default;

void Llama::initialize(uint64_t seed) {
  const NoGrad off;
  for (Parameter* parameter : parameters()) {
    if (parameter->decay() == Decay::no) continue;  // biases and norms have their values
    copy_(parameter->value(), normal(parameter->value().shape(), 0, config_.init_std, seed,
                                     stream_of(parameter->name().c_str())));
  }
}

ModelShape Llama::model_shape() const {
  return {.vocab_size = config_.vocab_size,
          .seq_len = config_.seq_len,
          .num_layers = config_.num_layers,
          .num_heads = config_.num_heads,
          .num_key_value_heads = config_.num_key_value_heads,
          .hidden_size = config_.hidden_size,
          .head_size = config_.head()};
}

RopeTables Llama::rope_tables(const ModelInput& input) const {
  const int64_t T = input.tokens_BT.size(1);
  const int64_t first = input.mask.query_offset;
  Tensor positions = input.positions_BT;
  int64_t length = first + T;
  if (positions.defined()) {
    require(positions.shape() == input.tokens_BT.shape(),
            "llama: positions {} for tokens {}; they must have one shape", positions,
            input.tokens_BT);
    length = 1;
    for (const int32_t position : positions.to_vector<int32_t>()) {
      length = std::max<int64_t>(length, position + 1);
    }
  } else {
    positions = arange(T, static_cast<double>(first), 1, DType::i32);
  }
  require(input.cache == nullptr || config_.rope.scaling != RopeScaling::dynamic_ntk ||
              length <= config_.rope.original_positions,
          "llama: with dynamic_ntk a sequence that grows beyond {} positions, here to {}, turns "
          "all keys by other angles than those in the cache; generate without a cache",
          config_.rope.original_positions, length);
  return nn::rope_tables(config_.rope, config_.head(), positions, length);
}

Tensor Llama::forward(const ModelInput& given) {
  return unit([&] {
    const ModelInput input = within_window(given, config_.window);
    const RopeTables tables = rope_tables(input);
    Tensor x_BTC = dropout_(embed_tokens_(input.tokens_BT));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      x_BTC = (*blocks_[i])(x_BTC, tables, input, static_cast<int64_t>(i));
    }
    if (input.last > 0) {
      const int64_t T = x_BTC.size(1);
      x_BTC = slice(x_BTC, 1, T - input.last, T);
    }
    x_BTC = norm_(x_BTC);
    return lm_head_ != nullptr ? (*lm_head_)(x_BTC) : embed_tokens_.project(x_BTC);
  });
}

}  // namespace faultline::nn
