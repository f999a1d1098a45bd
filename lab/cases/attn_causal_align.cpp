#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"

// Shapes: B batch, H heads, Q queries, K keys.
namespace faultline::lab {
namespace {

// page: begin
// The wrong code: a kernel whose causal flag means tril(Q x K), whatever the mask says of where the
// queries stand.
Tensor top_left(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  nn::Mask laid = mask;
  laid.query_offset = 0;
  return nn::AttentionWeightsSeam::standard(scores_BHQK, laid, scale);
}
// page: end

// The remedy: the last query at the last key, from the sizes of the scores.
Tensor bottom_right(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  nn::Mask laid = mask;
  laid.query_offset = scores_BHQK.size(3) - scores_BHQK.size(2);
  return nn::AttentionWeightsSeam::standard(scores_BHQK, laid, scale);
}

// Two queries that stand at the last two of five keys. All scores are 0, values are 2^key.
void two_of_five(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kKeys = 5;
  const nn::Mask mask = nn::causal_mask(2, kKeys, nn::CausalAlign::bottom_right);
  const Tensor q = normal({1, 1, 2, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = zeros({1, 1, kKeys, 1});
  const nn::AttentionOptions math{
      .scale = 1.0, .policy = nn::AttentionPolicy::require(nn::AttentionImplementation::math)};
  const Tensor v = tensor<float>({1, 2, 4, 8, 16}, {1, 1, kKeys, 1});
  const auto out = nn::attention(q, k, v, mask, math).to_vector<double>();
  metrics.measure("q3", out[0]);
  metrics.measure("q4", out[1]);
  const Tensor identity =
      cast(equal(reshape(arange(kKeys), {kKeys, 1}), arange(kKeys)), DType::f32);
  const Tensor weights = nn::attention(q, k, reshape(identity, {1, 1, kKeys, kKeys}), mask, math);
  metrics.add(Grid{"attention weights", 2, kKeys, weights.to_vector<double>()});
}

}  // namespace

FAULT(attn_causal_align) {
  Fault& fault = lab.fault(
      {.id = "attn.causal-align",
       .title = "A causal mask is laid to the other corner",
       .domain = "attention",
       .seed = "004 2.4",
       .mechanism =
           "A causal mask over Q queries and K keys is a triangle, and for Q != K it can lie in two "
           "corners. Top left, query i sees keys 0 to i; bottom right, keys 0 to K - Q + i, which is "
           "what queries behind a cache need. With equal scores and the values 1, 2, 4, 8, 16 two "
           "queries behind three cached keys must give 3.75 and 6.2; laid to the top left they give "
           "1 and 1.5. A decoded token, Q = 1, sees the first key of the text and nothing else. "
           "For Q = K both are one mask, so training and prompts are right.",
       .symptom =
           "Everything is right until a cache is used, or another version of a kernel is installed. "
           "Then generation repeats itself from the second token on, without an error.",
       .article_says =
           "That a clamp of an allocated key length in flash_fwd_hdim128.cu breaks causal masks.",
       .truth =
           "Those identifiers are not in the source. FlashAttention 2.1 changed the convention from "
           "top left to bottom right, with zeros for rows that see nothing; PyTorch's is_causal is "
           "still top left, and offers causal_lower_right beside it.",
       .fix = "Never rely on a causal flag when Q and K differ: name the alignment, or give the "
              "offset of the first query.",
       .sources =
           {"FlashAttention 2.1.0 (21 August 2023), commit 9e5e8bc9: causal masks are aligned to the "
            "bottom right. https://github.com/Dao-AILab/flash-attention",
            "pytorch issue 108108 (August 2023): is_causal is aligned to the top left. "
            "https://github.com/pytorch/pytorch/issues/108108",
            "FlashAttention issue 1778: zeros in rows that see no key are meant so. "
            "https://github.com/Dao-AILab/flash-attention/issues/1778"},
       .look_alikes =
           "attn.past-ignored: there the mask itself says that nothing came before. Print what the "
           "kernel was told: if the offset is right and the weights are not, it is this one.",
       .exercise =
           "Five queries and two keys: which rows see nothing under each alignment, and what "
           "should attention return for them?",
       .answer =
           "Top left: none, every query sees key 0. Bottom right: the first three, for which K - Q + "
           "i is negative; FlashAttention and this framework return zeros, a plain softmax NaN."});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&top_left);
      })
      .remedy([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&bottom_right);
      })
      .run(&two_of_five)
      .expect("q3", 1)
      .expect("q4", 1.5)
      .caught_by("attention.alignment")
      .in_generation({});
}

}  // namespace faultline::lab
