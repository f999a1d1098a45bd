#pragma once

#include <optional>

#include "nn/dispatch.h"
#include "nn/language_model.h"

// Shapes: B batch, T positions, H query heads, G key heads, Q queries, K keys, D head size,
// E head size of the values, C = H D.
namespace faultline::nn {

// How a mask and the scores become attention weights, in the implementation `math`.
struct AttentionWeightsSeam {
  static constexpr const char* name = "attention weights";
  // The scores [B, H, Q, K], f32 where attention is computed in f16, are multiplied by scale; the
  // result is [B, H, Q, K], rows sum to 1, or are 0 where no key is visible.
  using Signature = Tensor(const Tensor& scores_BHQK, const Mask& mask, double scale);
  static Tensor standard(const Tensor& scores_BHQK, const Mask& mask, double scale);
};

struct AttentionOptions {
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(D)
  double softcap = 0;       // 0: none; else scaled scores become softcap tanh(score / softcap)
  DropoutUse dropout = {};  // of the weights; see Dropout::use_now()
  std::optional<AttentionPolicy> policy = {};  // none: that of AttentionPolicySeam
};

// Scaled dot-product attention (Vaswani et al. 2017): q [B, H, Q, D], k [B, G, K, D] and v
// [B, G, K, E] give [B, H, Q, E]. Any strides. With fewer key heads than query heads, G must divide
// H and query head h reads key head h / (H / G) ("GQA", Ainslie et al. 2023). A row that sees no
// key gives zeros. Throws InvalidArgument on sizes or dtypes that do not fit together, and when the
// policy leaves no implementation.
//
// `math` shows observers the scores and weights, before dropout, as the launch "attention" with
// inputs scores, weights, key_valid, documents, keep and a MaskAttributes. Of f16 both are f32.
Tensor attention(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKE, const Mask& mask,
                 const AttentionOptions& options = {});

// What computes the attention of a model's layers.
struct SelfAttentionSeam {
  static constexpr const char* name = "self attention";
  using Signature = Tensor(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKE,
                           const Mask& mask, const AttentionOptions& options);
  static Tensor standard(const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKE,
                         const Mask& mask, const AttentionOptions& options) {
    return attention(q_BHQD, k_BGKD, v_BGKE, mask, options);
  }
};

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
