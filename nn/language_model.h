#pragma once

#include "nn/kv_cache.h"
#include "nn/layers.h"
#include "nn/mask.h"

namespace faultline::nn {

// What a forward pass is given. Shapes: B batch, T new positions.
struct ModelInput {
  Tensor tokens_BT;          // i32
  Mask mask;                 // which keys, cached ones first, each new position sees
  Tensor positions_BT = {};  // i32, for padded rows; undefined: mask.query_offset + 0, 1, ...
  KvCache* cache = nullptr;  // takes the new keys and values, gives all; not owned
  int64_t last = 0;          // logits of the last so many positions only; 0: of all
};

// The input of a model that attends within a window: its mask gets the window, unless it brings one
// of its own or the model has none (0).
ModelInput within_window(ModelInput input, int64_t window);

// How the result of a branch (attention or MLP) joins the residual stream.
struct ResidualSeam {
  static constexpr const char* name = "residual";
  using Signature = Tensor(const Tensor& x_BTC, const Tensor& branch_BTC);
  static Tensor standard(const Tensor& x_BTC, const Tensor& branch_BTC) {
    return x_BTC + branch_BTC;
  }
};

// How the parameters of a new model begin.
enum class Start : uint8_t {
  random,  // as for training
  zeros,   // norms 1: for whoever loads them, which is many times faster
};

// The sizes that callers of any language model need.
struct ModelShape {
  int64_t vocab_size = 0;
  int64_t seq_len = 0;  // positions that the model was made for
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t hidden_size = 0;
  int64_t head_size = 0;
};

// A causal language model: what training, generation, formats and LoRA need to know of one.
class LanguageModel : public Module {
 public:
  // Logits [B, T, V], or [B, input.last, V].
  virtual Tensor forward(const ModelInput& input) = 0;
  Tensor operator()(const Tensor& tokens_BT, const Mask& mask) {
    return forward({.tokens_BT = tokens_BT, .mask = mask});
  }

  virtual ModelShape model_shape() const = 0;
  // Set before each training forward pass; see DropoutKey.
  virtual DropoutKey& dropout_key() = 0;
  int64_t parameter_count();
};

// The loss of each position, 0 where the label is -1: logits [B, T, V], labels i32 [B, T], shifted
// already. In rows, so that a replacement knows where a sequence begins.
struct TokenLossSeam {
  static constexpr const char* name = "token loss";
  using Signature = Tensor(const Tensor& logits_BTV, const Tensor& labels_BT);
  static Tensor standard(const Tensor& logits_BTV, const Tensor& labels_BT);
};

// Sum of the losses of all labels that are not -1: logits [B, T, V], labels i32 [B, T]. Divide by
// the step's count of valid labels, over all micro-batches and ranks.
Tensor language_model_loss(const Tensor& logits_BTV, const Tensor& labels_BT);

}  // namespace faultline::nn
