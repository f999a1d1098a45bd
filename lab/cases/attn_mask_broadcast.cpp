#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"

// Shapes: B batch, H heads, Q queries, K keys.
namespace faultline::lab {
namespace {

// ---- the wrong code: masks as programs with broadcasting tensors make them ----------------------

// bool [B, Q, K]: what the predicate of the mask says.
Tensor keep_BQK(const nn::Mask& mask, const Tensor& scores_BHQK) {
  const int64_t B = scores_BHQK.size(0), Q = scores_BHQK.size(2), K = scores_BHQK.size(3);
  const std::vector<uint8_t> visible = nn::visibility(mask, B, Q, K);
  return cast(tensor(std::vector<float>(visible.begin(), visible.end()), {B, Q, K}),
              DType::boolean);
}

// bool [B, 1, Q, K]: the same with all four axes.
Tensor keep_B1QK(const nn::Mask& mask, const Tensor& scores_BHQK) {
  return reshape(keep_BQK(mask, scores_BHQK),
                 {scores_BHQK.size(0), 1, scores_BHQK.size(2), scores_BHQK.size(3)});
}

nn::Mask without_padding(const nn::Mask& mask) {
  return {mask.causal, mask.query_offset, {}, mask.documents};
}

// softmax over kept scores with the finite sentinel that many programs use; `keep` broadcasts.
Tensor softmax_where(const Tensor& keep, const Tensor& scores_BHQK, double scale) {
  const Tensor scaled = scores_BHQK * scale;
  return softmax(where(keep, scaled, full({1}, -1e4)));
}

// The padding mask [B, K] without an axis for queries: where B = Q it is taken for [Q, K]. For
// other sizes, as in a run's evaluation, such a program raises; here those get the right mask.
// page: begin
Tensor b_eq_t(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  if (scores_BHQK.size(0) != scores_BHQK.size(2)) {
    return nn::AttentionWeightsSeam::standard(scores_BHQK, mask, scale);
  }
  Tensor keep = keep_B1QK(without_padding(mask), scores_BHQK);
  if (mask.key_valid.defined()) keep = logical_and(keep, mask.key_valid);
  return softmax_where(keep, scores_BHQK, scale);
}
// page: end

// The mask [B, Q, K] without an axis for heads: where B = H it is taken for [H, Q, K].
Tensor b_eq_h(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  if (scores_BHQK.size(0) != scores_BHQK.size(1)) {
    return nn::AttentionWeightsSeam::standard(scores_BHQK, mask, scale);
  }
  return softmax_where(keep_BQK(mask, scores_BHQK), scores_BHQK, scale);
}

// The padding mask on the axis of the queries, [B, 1, Q, 1].
Tensor query_axis(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const int64_t B = scores_BHQK.size(0), Q = scores_BHQK.size(2);
  Tensor keep = keep_B1QK(without_padding(mask), scores_BHQK);
  if (mask.key_valid.defined()) keep = logical_and(keep, reshape(mask.key_valid, {B, 1, Q, 1}));
  return softmax_where(keep, scores_BHQK, scale);
}

// "True" taken for "hide": a row that then sees nothing gives zeros, as in safe softmax.
Tensor inverted(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor keep = logical_not(keep_B1QK(mask, scores_BHQK));
  return where(keep, softmax_where(keep, scores_BHQK, scale), zeros({1}));
}

// The article's own remedy, logits + ~mask: hidden keys get one added to their score.
Tensor additive_bool(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor hidden = cast(logical_not(keep_B1QK(mask, scores_BHQK)), DType::f32);
  return softmax(scores_BHQK * scale + hidden);
}

// A mask of ones and zeros added to the scores: visible keys get one added, none is hidden.
Tensor additive_float(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  return softmax(scores_BHQK * scale + cast(keep_B1QK(mask, scores_BHQK), DType::f32));
}

// ---- the remedies: the mask that each of these programs should have made ------------------------

// The padding mask with all four axes, [B, 1, 1, K].
Tensor padding_on_keys(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const int64_t B = scores_BHQK.size(0), K = scores_BHQK.size(3);
  Tensor keep = keep_B1QK(without_padding(mask), scores_BHQK);
  if (mask.key_valid.defined()) keep = logical_and(keep, reshape(mask.key_valid, {B, 1, 1, K}));
  return softmax_where(keep, scores_BHQK, scale);
}

// The mask with an axis for heads, true where it keeps.
Tensor four_axes(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  return softmax_where(keep_B1QK(mask, scores_BHQK), scores_BHQK, scale);
}

// A mask that is added holds -infinity where it hides, and 0 elsewhere.
Tensor add_infinity(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor hidden = where(keep_B1QK(mask, scores_BHQK), zeros({1}), full({1}, -INFINITY));
  return softmax(scores_BHQK * scale + hidden);
}

// The same from a mask of ones and zeros: (1 - mask) x -1e9.
Tensor add_large_number(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor ones_and_zeros = cast(keep_B1QK(mask, scores_BHQK), DType::f32);
  return softmax(scores_BHQK * scale + affine(ones_and_zeros, 1e9, -1e9));
}

using Weights = Tensor(const Tensor&, const nn::Mask&, double);
Plant replace_weights(Weights* wrong) {
  return
      [wrong](Context& context) { return context.seams.replace<nn::AttentionWeightsSeam>(wrong); };
}

// ---- the visibility probe -----------------------------------------------------------------------
// Keys are 0, so all scores are, whatever the queries: a row's weights are equal on the keys that
// it sees. Values are the identity, so attention's output is its weights. The figure of a row is
// the sum of weight x 2^key, the mean of 2^key over what it sees: 1, 1.5, 2.33333, 3.75 for the
// first 1 to 4 keys, and another number for each other set.
constexpr int64_t kKeys = 4;

class Probe {
 public:
  Probe(const RunOptions& options, int64_t batch, int64_t heads, const nn::Mask& mask)
      : heads_(heads) {
    const Tensor q = normal({batch, heads, kKeys, 1}, 0, 1, options.seed, stream_of("queries"));
    const Tensor k = zeros({batch, heads, kKeys, 1});
    const Tensor position = arange(kKeys);
    const Tensor identity = cast(equal(reshape(position, {kKeys, 1}), position), DType::f32);
    const Tensor v = expand(identity, {batch, heads, kKeys, kKeys});
    weights_ = nn::attention(q, k, v, mask, {.scale = 1.0}).to_vector<double>();
  }

  double figure(int64_t batch, int64_t head, int64_t query) const {
    double sum = 0;
    for (int64_t k = 0; k < kKeys; ++k) {
      sum += weights_[at(batch, head) + static_cast<size_t>(query * kKeys + k)] * std::exp2(k);
    }
    return sum;
  }
  Grid picture(const std::string& name, int64_t batch, int64_t head) const {
    const auto first = weights_.begin() + static_cast<int64_t>(at(batch, head));
    return {name, kKeys, kKeys, {first, first + kKeys * kKeys}};
  }

 private:
  size_t at(int64_t batch, int64_t head) const {
    return static_cast<size_t>((batch * heads_ + head) * kKeys * kKeys);
  }

  int64_t heads_;
  std::vector<double> weights_;  // [batch, head, query, key]
};

// bool [B, 4]: the first lengths[b] keys of sequence b are text.
Tensor valid_keys(std::initializer_list<int> lengths) {
  std::vector<int64_t> limit(lengths.begin(), lengths.end());
  const auto B = static_cast<int64_t>(limit.size());
  return less(reshape(arange(kKeys), {1, kKeys}), reshape(tensor(limit, {B}), {B, 1}));
}

// Padding only, four sequences of lengths 4, 1, 3, 2: every query of a sequence sees the same keys.
void padded_batch(const RunOptions& options, Metrics& metrics) {
  const nn::Mask mask{.causal = false, .key_valid = valid_keys({4, 1, 3, 2})};
  const Probe probe(options, 4, 2, mask);
  metrics.measure("b0 q1", probe.figure(0, 0, 1));
  metrics.measure("b1 q0", probe.figure(1, 0, 0));
  metrics.measure("b2 q3", probe.figure(2, 0, 3));
  metrics.add(probe.picture("attention weights, sequence of length 1", 1, 0));
}

void two_heads(const RunOptions& options, Metrics& metrics) {
  const nn::Mask mask{.causal = false, .key_valid = valid_keys({4, 2})};
  const Probe probe(options, 2, 2, mask);
  metrics.measure("b0 h1", probe.figure(0, 1, 0));
  metrics.measure("b1 h0", probe.figure(1, 0, 0));
  metrics.add(probe.picture("attention weights, sequence of length 4, head 1", 0, 1));
}

// One causal sequence, and a figure for each query.
void causal_sequence(const RunOptions& options, const nn::Mask& mask, Metrics& metrics) {
  const Probe probe(options, 1, 1, mask);
  for (int64_t q = 0; q < kKeys; ++q) {
    metrics.measure("q" + std::to_string(q), probe.figure(0, 0, q));
  }
  metrics.add(probe.picture("attention weights", 0, 0));
}
void padded_causal(const RunOptions& options, Metrics& metrics) {
  causal_sequence(options, nn::Mask{.key_valid = valid_keys({2})}, metrics);
}
void causal(const RunOptions& options, Metrics& metrics) {
  causal_sequence(options, nn::Mask{}, metrics);
}

const char* const kRounded = "given to six decimals; thirds and exponentials are no f32 numbers";
constexpr double kSixDecimals = 1e-6;

void add_broadcast_variants(Fault& fault) {
  // In a run a document is a verse: some are shorter than a row, so rows are padded where they are
  // not packed, and rows hold several documents, so batch and query matter, where they are.
  fault.variant("b-eq-t", "A padding mask [B, T] taken for [T, T] where B = T")
      .wrong(replace_weights(&b_eq_t))
      .remedy(replace_weights(&padding_on_keys))
      .run(&padded_batch)
      .expect("b0 q1", 1)
      .expect("b1 q0", 3.75)
      .expect("b2 q3", 1.5)
      .claimed("logits + ~mask, the article's correct line", replace_weights(&additive_bool))
      .caught_by("mask.visibility")
      .in_training({.steps = 200,
                    .needs = {{"batch_size", "48"},
                              {"micro_batch_size", "0"},
                              {"seq_len", "48"},
                              {"pack", "false"},
                              {"documents", "verse"}}});
  fault.variant("b-eq-h", "A mask [B, T, T] taken for [H, T, T] where B = H")
      .wrong(replace_weights(&b_eq_h))
      .remedy(replace_weights(&four_axes))
      .run(&two_heads)
      .expect("b0 h1", 1.5)
      .expect("b1 h0", 3.75)
      .caught_by("mask.visibility")
      .in_training({.steps = 200,
                    .needs = {{"batch_size", "2"},
                              {"micro_batch_size", "0"},
                              {"num_heads", "2"},
                              {"documents", "verse"}}});
  fault.variant("query-axis", "A padding mask on the axis of the queries")
      .wrong(replace_weights(&query_axis))
      .remedy(replace_weights(&padding_on_keys))
      .run(&padded_causal)
      .expect("q2", 3.75)
      .expect("q3", 3.75)
      .caught_by("mask.visibility")
      .in_training(
          {.steps = 200, .needs = {{"seq_len", "64"}, {"pack", "false"}, {"documents", "verse"}}});
}

void add_meaning_variants(Fault& fault) {
  fault.variant("inverted", "A mask whose true means hide where true means keep")
      .wrong(replace_weights(&inverted))
      .remedy(replace_weights(&four_axes))
      .run(&causal)
      .expect_within("q0", 14.0 / 3, kSixDecimals, kRounded)
      .expect("q1", 6)
      .expect("q2", 8)
      .expect("q3", 0)
      .caught_by("mask.visibility")
      .in_training({.steps = 200});
  fault.variant("additive-bool", "logits + ~mask: the future gets one added to its scores")
      .wrong(replace_weights(&additive_bool))
      .remedy(replace_weights(&add_infinity))
      .run(&causal)
      .expect_within("q0", 4.266150, kSixDecimals, kRounded)
      .expect_within("q1", 4.789764, kSixDecimals, kRounded)
      .expect_within("q2", 5.027079, kSixDecimals, kRounded)
      .caught_by("mask.visibility")
      .in_training({.steps = 200});
  fault.variant("additive-float", "A mask of ones and zeros added to the scores hides nothing")
      .wrong(replace_weights(&additive_float))
      .remedy(replace_weights(&add_large_number))
      .run(&causal)
      .expect_within("q0", 2.923655, kSixDecimals, kRounded)
      .expect_within("q1", 2.710236, kSixDecimals, kRounded)
      .expect_within("q2", 2.952313, kSixDecimals, kRounded)
      .caught_by("mask.visibility")
      .in_training({.steps = 200});
}

}  // namespace

FAULT(attn_mask_broadcast) {
  Fault& fault = lab.fault(
      {.id = "attn.mask-broadcast",
       .title = "An attention mask meets the scores on another axis, or as a number",
       .domain = "attention",
       .seed = "000 2.1",
       .mechanism =
           "Broadcasting aligns shapes from the right. A mask that lacks the axis of heads or "
           "queries binds to another axis whenever two sizes coincide: [B, T] is taken for [T, T] "
           "where B = T, [B, T, T] for [H, T, T] where B = H. For other sizes it raises, so the "
           "test passes and the training run does not notice. Alike: a mask on the query axis, one "
           "whose true means hide, or one added to the scores: + 1 on hidden keys gives the first "
           "of four queries the weights 0.109232 on itself and 0.296923 on each later key.",
       .symptom =
           "Where positions see the future the loss falls below what the text allows and the model "
           "generates nonsense; where they see padding or another sequence's mask the loss is a "
           "little worse than it should be, and changes with the batch size.",
       .article_says =
           "mask[None], of shape (1, 8, 8), broadcasts over the wrong axis; the right way is "
           "attn_logits + ~mask[None, None].",
       .truth =
           "(8, 8), (1, 8, 8) and (1, 1, 8, 8) mean the same against [B, H, 8, 8]. The line that "
           "the article calls right adds 1 to the scores of the future and hides nothing: it is "
           "the variant additive-bool. What really goes wrong is a mask whose batch axis falls "
           "on queries or heads.",
       .fix =
           "Represent a mask as a predicate over (batch, query, key) and apply it as a condition. "
           "Where it must be a tensor, give it all four axes: [B, 1, 1, T] for padding, "
           "[1, 1, T, T] for causality.",
       .sources =
           {"mlx-lm pull request 1467 (July 2026): a mask (B, 1, L, L) against grouped scores of "
            "five axes meets the key heads with its batch; it raises, unless the two are equal. "
            "https://github.com/ml-explore/mlx-lm/pull/1467",
            "hyunwoongko/transformer pull request 40 (October 2025): a padding mask on the query "
            "axis, hidden by -1e4. https://github.com/hyunwoongko/transformer/pull/40",
            "rasbt/LLMs-from-scratch issue 1061 (August 2026): an upper triangle passed where true "
            "means keep. https://github.com/rasbt/LLMs-from-scratch/issues/1061",
            "PyTorch issue 120810 (2024): scaled_dot_product_attention takes any mask that "
            "broadcasts. https://github.com/pytorch/pytorch/issues/120810"},
       .look_alikes =
           "attn.mask-multiply: every hidden key has exactly the weight of a score of 0, or rows "
           "do not sum to 1. attn.packing-leak: only keys of other documents are seen, and "
           "attention was never told of documents. labels.no-shift also takes the loss below its "
           "floor, with every hidden weight at 0.",
       .exercise =
           "A test of attention uses B = 2, H = 4, T = 8 and passes. Which sizes would you choose "
           "so that no two axes can be taken for each other, and why is one test with B = H = T "
           "needed all the same?",
       .answer =
           "Sizes that differ pairwise, such as B = 2, H = 3, Q = 5, K = 7: a mask on a wrong axis "
           "then raises. But the silent fault lives where sizes coincide, so one more "
           "test has them all equal and compares each weight with the predicate."});
  add_broadcast_variants(fault);
  add_meaning_variants(fault);
}

}  // namespace faultline::lab
