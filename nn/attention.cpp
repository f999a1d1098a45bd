#include "nn/attention.h"

#include <cmath>

#include "autograd/observe.h"

// Shapes: B batch, T positions, Q queries, K keys, H heads, D head size, C = H D.
namespace faultline::nn {

Tensor AttentionWeightsSeam::standard(const Tensor& scores_BHQK, const Mask& mask, double scale) {
  return masked_softmax(scores_BHQK, mask.key_valid, mask.documents, mask.attributes(scale));
}

namespace {

Tensor weights_of(const Tensor& q_BHQD, const Tensor& k_BHKD, const Mask& mask, double scale) {
  const Tensor scores_BHQK = matmul(q_BHQD, transpose(k_BHKD, -2, -1));
  const Tensor weights_BHQK =
      Context::current().seams.call<AttentionWeightsSeam>(scores_BHQK, mask, scale);
  observe("attention", {scores_BHQK, weights_BHQK, mask.key_valid, mask.documents},
          mask.attributes(scale));
  return weights_BHQK;
}

}  // namespace

Tensor attention(const Tensor& q_BHQD, const Tensor& k_BHKD, const Tensor& v_BHKD, const Mask& mask,
                 double scale) {
  return matmul(weights_of(q_BHQD, k_BHKD, mask, scale), v_BHKD);
}

SelfAttention::SelfAttention(int64_t hidden_size, int64_t num_heads, double dropout,
                             const DropoutKey& key)
    : num_heads_(num_heads),
      qkv_(hidden_size, 3 * hidden_size),
      proj_(hidden_size, hidden_size),
      weights_dropout_(dropout, key) {
  require(num_heads > 0 && hidden_size % num_heads == 0,
          "attention: {} heads do not divide a width of {}; choose a divisor", num_heads,
          hidden_size);
  add_child("qkv", qkv_);
  add_child("proj", proj_);
  add_child("dropout", weights_dropout_);
}

Tensor SelfAttention::operator()(const Tensor& x_BTC, const ModelInput& input, int64_t layer) {
  return unit([&] {
    const int64_t B = x_BTC.size(0);
    const int64_t T = x_BTC.size(1);
    const int64_t C = x_BTC.size(2);
    const int64_t D = C / num_heads_;
    const auto heads = [&](const Tensor& part_BTC) {
      return permute(reshape(part_BTC, {B, T, num_heads_, D}), {0, 2, 1, 3});
    };
    const auto [q, k, v] = split3(qkv_(x_BTC));
    KvCache::All all{heads(k), heads(v)};
    if (input.cache != nullptr) all = input.cache->append(layer, all.k_BGKD, all.v_BGKD);
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    const Tensor weights_BHTK =
        weights_dropout_(weights_of(heads(q), all.k_BGKD, input.mask, scale));
    const Tensor y_BHTD = matmul(weights_BHTK, all.v_BGKD);
    return proj_(reshape(permute(y_BHTD, {0, 2, 1, 3}), {B, T, C}));
  });
}

}  // namespace faultline::nn
