#include "nn/gpt2.h"

#include <cmath>
#include <string>

#include "core/rng.h"

// Shapes: B batch, T positions, C hidden size, V vocabulary.
namespace faultline::nn {

void Gpt2Config::check() const {
  const auto positive = [](int64_t value, const char* key) {
    require(value > 0, "{}: must be positive, got {}", key, value);
  };
  positive(vocab_size, "vocab_size");
  positive(seq_len, "seq_len");
  positive(num_layers, "num_layers");
  positive(num_heads, "num_heads");
  positive(hidden_size, "hidden_size");
  require(hidden_size % num_heads == 0,
          "num_heads: {} heads do not divide hidden_size {} ({} mod {} = {}); choose a divisor",
          num_heads, hidden_size, hidden_size, num_heads, hidden_size % num_heads);
  require(window >= 0, "window: must not be negative, got {}; 0 is none", window);
  require(dropout >= 0 && dropout < 1, "dropout: must be in [0, 1), got {}", dropout);
  require(layer_norm_epsilon > 0 && std::isfinite(layer_norm_epsilon),
          "layer_norm_epsilon: must be positive, got {}", layer_norm_epsilon);
  require(init_std > 0 && std::isfinite(init_std), "init_std: must be positive, got {}", init_std);
}

Mlp::Mlp(int64_t hidden_size, Gelu form)
    : form_(form), fc_(hidden_size, 4 * hidden_size), proj_(4 * hidden_size, hidden_size) {
  add_child("fc", fc_);
  add_child("proj", proj_);
}

Tensor Mlp::operator()(const Tensor& x_BTC) {
  return unit(
      [&] { return proj_(Context::current().seams.call<ActivationSeam>(fc_(x_BTC), form_)); });
}

Block::Block(const Gpt2Config& config, const DropoutKey& key)
    : ln_1_(config.hidden_size, config.layer_norm_epsilon),
      attn_(config.hidden_size, config.num_heads, config.dropout, key),
      ln_2_(config.hidden_size, config.layer_norm_epsilon),
      mlp_(config.hidden_size, config.gelu),
      dropout_1_(config.dropout, key),
      dropout_2_(config.dropout, key) {
  add_child("ln_1", ln_1_);
  add_child("attn", attn_);
  add_child("ln_2", ln_2_);
  add_child("mlp", mlp_);
  add_child("dropout_1", dropout_1_);
  add_child("dropout_2", dropout_2_);
}

Tensor Block::operator()(const Tensor& x_BTC, const ModelInput& input, int64_t layer) {
  return unit([&] {
    const SeamTable& seams = Context::current().seams;
    const Tensor attended_BTC =
        seams.call<ResidualSeam>(x_BTC, dropout_1_(attn_(ln_1_(x_BTC), input, layer)));
    return seams.call<ResidualSeam>(attended_BTC, dropout_2_(mlp_(ln_2_(attended_BTC))));
  });
}

namespace {
const Gpt2Config& checked(const Gpt2Config& config) {
  config.check();
  return config;
}
}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, uint64_t seed, Start start)
    : config_(checked(config)),
      dropout_key_(seed),
      wte_(config.vocab_size, config.hidden_size),
      wpe_(config.seq_len, config.hidden_size),
      dropout_(config.dropout, dropout_key_),
      ln_f_(config.hidden_size, config.layer_norm_epsilon) {
  add_child("wte", wte_);
  add_child("wpe", wpe_);
  add_child("dropout", dropout_);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    blocks_.push_back(std::make_unique<Block>(config, dropout_key_));
    add_child("h." + std::to_string(i), *blocks_.back());
  }
  add_child("ln_f", ln_f_);
  if (start == Start::random) initialize(seed);
}

void Gpt2::initialize(uint64_t seed) {
  const NoGrad off;
  const double residual =
      config_.init_std / std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  for (Parameter* parameter : parameters()) {
    if (parameter->decay() == Decay::no) continue;  // biases and norms have their values
    const bool ends_residual = parameter->name().ends_with("proj.weight");
    const double deviation = ends_residual ? residual : config_.init_std;
    copy_(parameter->value(), normal(parameter->value().shape(), 0, deviation, seed,
                                     stream_of(parameter->name().c_str())));
  }
}

ModelShape Gpt2::model_shape() const {
  return {.vocab_size = config_.vocab_size,
          .seq_len = config_.seq_len,
          .num_layers = config_.num_layers,
          .num_heads = config_.num_heads,
          .num_key_value_heads = config_.num_heads,
          .hidden_size = config_.hidden_size,
          .head_size = config_.hidden_size / config_.num_heads};
}

Tensor Gpt2::forward(const ModelInput& given) {
  return unit([&] {
    const ModelInput input = within_window(given, config_.window);
    const int64_t T = input.tokens_BT.size(1);
    const int64_t first = input.mask.query_offset;
    require(first + T <= config_.seq_len,
            "gpt2: {} positions, but the model knows {}; shorten the input", first + T,
            config_.seq_len);
    const Tensor positions = input.positions_BT.defined()
                                 ? input.positions_BT
                                 : arange(T, static_cast<double>(first), 1, DType::i32);
    Tensor x_BTC = dropout_(wte_(input.tokens_BT) + wpe_(positions));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      x_BTC = (*blocks_[i])(x_BTC, input, static_cast<int64_t>(i));
    }
    if (input.last > 0) x_BTC = slice(x_BTC, 1, T - input.last, T);
    return wte_.project(ln_f_(x_BTC));
  });
}

}  // namespace faultline::nn
