#pragma once

#include "nn/language_model.h"

namespace faultline::nn {

// How a mask and the scores become attention weights.
struct AttentionWeightsSeam {
  static constexpr const char* name = "attention weights";
  // scores [B, H, Q, K] are unscaled; the result is [B, H, Q, K], rows sum to 1, or are 0 where no
  // key is visible.
  using Signature = Tensor(const Tensor& scores_BHQK, const Mask& mask, double scale);
  static Tensor standard(const Tensor& scores_BHQK, const Mask& mask, double scale);
};

// Scaled dot-product attention (Vaswani et al. 2017): q [B, H, Q, D], k and v [B, H, K, D] give
// [B, H, Q, D]. Any strides. `scale` is usually 1 / sqrt(D).
// Shows observers the scores and weights as the launch "attention" with inputs scores, weights,
// key_valid, documents and a MaskAttributes.
Tensor attention(const Tensor& q_BHQD, const Tensor& k_BHKD, const Tensor& v_BHKD, const Mask& mask,
                 double scale);

// Causal multi-head self-attention with one projection for q | k | v and one for the result.
class SelfAttention : public Module {
 public:
  SelfAttention(int64_t hidden_size, int64_t num_heads, double dropout, const DropoutKey& key);
  // x [B, T, C] to [B, T, C]; `layer` is this one's number in the cache.
  Tensor operator()(const Tensor& x_BTC, const ModelInput& input, int64_t layer);

 private:
  int64_t num_heads_;
  Linear qkv_;
  Linear proj_;
  Dropout weights_dropout_;
};

}  // namespace faultline::nn
