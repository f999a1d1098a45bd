#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"

// Shapes: B batch, H heads, Q queries, K keys.
namespace faultline::lab {
namespace {

// 1 where the mask allows the key, 0 where it hides it, for the first `batch` sequences.
Tensor ones_and_zeros(const nn::Mask& mask, const Tensor& scores_BHQK, int64_t batch) {
  const int64_t Q = scores_BHQK.size(2), K = scores_BHQK.size(3);
  const std::vector<uint8_t> visible = nn::visibility(mask, batch, Q, K);
  return tensor(std::vector<float>(visible.begin(), visible.end()), {batch, 1, Q, K});
}

// [Q, K]: causality, the mask of the article.
Tensor causal_QK(const nn::Mask& mask, const Tensor& scores_BHQK) {
  const nn::Mask causal{
      .causal = mask.causal, .query_offset = mask.query_offset, .prefix = mask.prefix};
  return reshape(ones_and_zeros(causal, scores_BHQK, 1),
                 {scores_BHQK.size(2), scores_BHQK.size(3)});
}

// [B, 1, Q, K]: what differs between sequences, padding and documents.
Tensor of_batch_B1QK(const nn::Mask& mask, const Tensor& scores_BHQK) {
  nn::Mask rest = mask;
  rest.causal = false;
  return ones_and_zeros(rest, scores_BHQK, scores_BHQK.size(0));
}

// page: begin
// The wrong code: a mask of ones and zeros as a factor, before softmax or after it.
Tensor multiply_before(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor scores = scores_BHQK * scale * causal_QK(mask, scores_BHQK);
  return softmax(scores * of_batch_B1QK(mask, scores_BHQK));
}

Tensor multiply_after(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor weights = softmax(scores_BHQK * scale) * causal_QK(mask, scores_BHQK);
  return weights * of_batch_B1QK(mask, scores_BHQK);
}
// page: end

// The article's remedy: attn_mask[None, None], four axes, and still a factor.
Tensor multiply_four_axes(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const int64_t Q = scores_BHQK.size(2), K = scores_BHQK.size(3);
  const Tensor causal_11QK = reshape(causal_QK(mask, scores_BHQK), {1, 1, Q, K});
  const Tensor scores = scores_BHQK * scale * causal_11QK;
  return softmax(scores * of_batch_B1QK(mask, scores_BHQK));
}

// The remedy: before softmax, as a condition.
Tensor hide_before(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor factor = ones_and_zeros(mask, scores_BHQK, scores_BHQK.size(0));
  return softmax(where(cast(factor, DType::boolean), scores_BHQK * scale, full({1}, -INFINITY)));
}

using MaskedWeights = Tensor(const Tensor&, const nn::Mask&, double);
Plant mask_by(MaskedWeights* by) {
  return [by](Context& context) { return context.seams.replace<nn::AttentionWeightsSeam>(by); };
}

Tensor identity(int64_t n) {
  return cast(equal(reshape(arange(n), {n, 1}), arange(n)), DType::f32);
}

// The weights of causal attention with these queries and keys [1, 1, T, D]: the values are the
// identity, so the output is the weights, [query][key].
std::vector<double> weights_of(const Tensor& q, const Tensor& k) {
  const int64_t T = q.size(2);
  const Tensor v = reshape(identity(T), {1, 1, T, T});
  return nn::attention(q, k, v, nn::Mask{}, {.scale = 1.0}).to_vector<double>();
}

// The picture: 8 random queries and keys.
void add_picture(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 8;
  const Tensor q = normal({1, 1, kTokens, 4}, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = normal({1, 1, kTokens, 4}, 0, 1, options.seed, stream_of("keys"));
  metrics.add(Grid{"attention weights", kTokens, kTokens, weights_of(q, k)});
}

// The first of two queries scores -2 with itself and something above 1 with the key that it may not
// see; the seed says what, and it must not matter.
void two_tokens(const RunOptions& options, Metrics& metrics) {
  const double hidden = 1 + uniform({1}, 0, 4, options.seed, stream_of("hidden")).item<double>();
  const Tensor q = ones({1, 1, 2, 1});
  const Tensor k = tensor<float>({-2, static_cast<float>(hidden)}, {1, 1, 2, 1});
  const auto weights = weights_of(q, k);
  metrics.measure("own weight", weights[0]);
  metrics.measure("future", weights[1]);
  add_picture(options, metrics);
}

// All scores are 0 and values are 2^key: a row that sees n keys gives the mean of their values.
void four_tokens(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 4;
  const Tensor q = normal({1, 1, kTokens, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor v = tensor<float>({1, 2, 4, 8}, {1, 1, kTokens, 1});
  const auto out = nn::attention(q, zeros({1, 1, kTokens, 1}), v, nn::Mask{}, {.scale = 1.0})
                       .to_vector<double>();
  for (size_t i = 0; i < out.size(); ++i) metrics.measure("q" + std::to_string(i), out[i]);
  add_picture(options, metrics);
}

}  // namespace

FAULT(attn_mask_multiply) {
  Fault& fault = lab.fault(
      {.id = "attn.mask-multiply",
       .title = "An attention mask multiplies, where it should hide",
       .domain = "attention",
       .seed = "000 2.4",
       .mechanism =
           "Softmax turns a score s into exp(s), so a hidden key needs the score -infinity. A mask "
           "of ones and zeros multiplied before softmax gives it the score 0, and exp(0) = 1: with "
           "a visible score of -2 the hidden key gets 1 / (1 + exp(-2)) = 0.880797 of the weight. "
           "With +2 it is the other way round: how much leaks depends on the data. Multiplied "
           "after softmax, hidden keys weigh 0, but their exponentials stay in the denominator: "
           "with four equal scores the rows sum to 0.25, 0.5, 0.75 and 1, and every row "
           "still depends on the scores of its future.",
       .symptom =
           "The loss looks healthy for hundreds of steps, or a little better than it should. With "
           "time it falls below what an honest model can reach, and generation is worse than it "
           "promises. To perturb a later token moves earlier outputs; multiplied after softmax, "
           "early positions also get outputs that are too small.",
       .article_says = "scores * attn_mask with a mask [8, 8] silently becomes [2, 8, 8, 8]; "
                       "attn_mask[None, ...] makes it safe.",
       .truth =
           "[2, 8, 8] times [8, 8] is [2, 8, 8]: no axis appears, and more axes on the mask change "
           "nothing, as the claimed run shows. The defect of that line is the multiplication "
           "itself (and that its scores are neither scaled nor put through a softmax).",
       .fix =
           "Apply the mask before softmax, as a condition or by adding -infinity where it hides.",
       .sources =
           {"georg-wolflein/good-features pull request 1 (November 2023): a binary mask multiplied "
            "into the scores; softmax still counts the zeros. "
            "https://github.com/georg-wolflein/good-features/pull/1",
            "pytorch-image-models pull request 2236 (July 2024): EVA's attention mask was applied "
            "after the softmax. https://github.com/huggingface/pytorch-image-models/pull/2236",
            "GluonTS pull request 1401 (April 2021): masked scores set to 1e-9, which is 0, in "
            "place of -1e9. https://github.com/awslabs/gluonts/pull/1401",
            "transformers issue 542 (April 2019): why a mask cannot simply multiply, asked and "
            "answered. https://github.com/huggingface/transformers/issues/542"},
       .look_alikes =
           "attn.mask-broadcast also gives weight to hidden keys, but not the weight of a score of "
           "0: compare each hidden weight with exp(0) / sum. Dropout on the weights makes rows "
           "that do not sum to 1 too; it is off in evaluation, and this fault is not.",
       .exercise =
           "Train with --fault attn.mask-multiply:post and look only at the loss. Then compute the "
           "sum of the first query's weights. How large is it when all scores are alike and the "
           "row has 32 keys?",
       .answer =
           "1/32: the softmax shared the weight among 32 keys and the mask threw away 31 of them. "
           "The loss does not show it: in 300 steps of the tiny model it is even a little lower "
           "than the healthy one, for what is left of each weight tells about the future."});

  fault.variant("pre", "A mask multiplied into the scores: hidden keys count as a score of 0")
      .wrong(mask_by(&multiply_before))
      .remedy(mask_by(&hide_before))
      .run(&two_tokens)
      .expect_within("own weight", 1 / (1 + std::exp(2.0)), 1e-7,
                     "one exp, one sum and one division, rounded in f32")
      .expect_within("future", 1 / (1 + std::exp(-2.0)), 1e-6,
                     "one exp, one sum and one division, rounded in f32")
      .claimed("attn_mask[None, None]: a mask of four axes", mask_by(&multiply_four_axes))
      .caught_by("mask.visibility")
      .in_training({.steps = 200});
  fault.variant("post", "A mask multiplied into the weights: rows no longer sum to 1")
      .wrong(mask_by(&multiply_after))
      .remedy(mask_by(&hide_before))
      .run(&four_tokens)
      .expect("q0", 0.25)
      .expect("q1", 0.75)
      .expect("q2", 1.75)
      .caught_by("attention.row-sums")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
