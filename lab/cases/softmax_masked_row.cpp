#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/attention.h"

// Shapes: B batch, H heads, Q queries, K keys.
namespace faultline::lab {
namespace {

// bool [B, 1, Q, K]: what the mask allows.
Tensor keep_as_keys(const nn::Mask& mask, const Tensor& scores_BHQK) {
  const int64_t B = scores_BHQK.size(0), Q = scores_BHQK.size(2), K = scores_BHQK.size(3);
  const std::vector<uint8_t> visible = nn::visibility(mask, B, Q, K);
  return cast(tensor(std::vector<float>(visible.begin(), visible.end()), {B, 1, Q, K}),
              DType::boolean);
}

// The same, and nothing for a query that is padding itself.
Tensor keep_text_only(const nn::Mask& mask, const Tensor& scores_BHQK) {
  const int64_t B = scores_BHQK.size(0), Q = scores_BHQK.size(2);
  const Tensor keep = keep_as_keys(mask, scores_BHQK);
  if (!mask.key_valid.defined()) return keep;
  const Tensor own = slice(mask.key_valid, 1, mask.query_offset, mask.query_offset + Q);
  return logical_and(keep, reshape(own, {B, 1, Q, 1}));
}

// page: begin
// The wrong code: padding is hidden as a key and as a query, and what is hidden is -infinity. A row
// of padding is then -infinity throughout, and its softmax is exp(-inf + inf) = NaN.
Tensor hide_with_infinity(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor keep = keep_text_only(mask, scores_BHQK);
  return softmax(where(keep, scores_BHQK * scale, full({1}, -INFINITY)));
}
// page: end

// The remedy: padding is hidden as a key only. Text stands to the left of it, so that a causal
// query that is padding still sees some.
Tensor hide_keys_only(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor keep = keep_as_keys(mask, scores_BHQK);
  return softmax(where(keep, scores_BHQK * scale, full({1}, -INFINITY)));
}

// One sequence: two tokens of text, two of padding. The loss reads the rows of the text only, and
// what the others hold is overwritten with 0 first, as people do against such a NaN.
void padded_sequence(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 4;
  const Tensor is_text = less(arange(kTokens), full({1}, 2, DType::i64));
  const Tensor q = normal({1, 1, kTokens, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = zeros({1, 1, kTokens, 1});
  const Tensor v = tensor<float>({1, 2, 4, 8}, {1, 1, kTokens, 1});
  for (const Tensor& leaf : {q, k, v}) set_requires_grad(leaf);

  const nn::Mask mask{.key_valid = reshape(is_text, {1, kTokens})};
  const Tensor out = nn::attention(q, k, v, mask, {.scale = 1.0});
  const Tensor of_text = reshape(is_text, {1, 1, kTokens, 1});
  const Tensor loss = sum(where(of_text, out, zeros({1})));
  backward(loss);

  const auto rows = out.to_vector<double>();
  metrics.measure("row of text", rows[1]);
  metrics.measure("padded row", rows[2]);
  metrics.measure("loss", loss.item<double>());
  metrics.measure("dv0", gradient(v).to_vector<double>()[0]);
  double finite = 0;
  for (const Tensor& leaf : {q, k, v}) {
    finite += sum(cast(isfinite(gradient(leaf)), DType::f32)).item<double>();
  }
  metrics.count("finite", finite);
}

// The picture: the weights of the same sequence; a NaN is an empty field.
void masked_row(const RunOptions& options, Metrics& metrics) {
  padded_sequence(options, metrics);
  constexpr int64_t kTokens = 4;
  const NoGrad off;
  const Tensor is_text = less(arange(kTokens), full({1}, 2, DType::i64));
  const Tensor zero = zeros({1, 1, kTokens, 1});
  const Tensor identity =
      cast(equal(reshape(arange(kTokens), {kTokens, 1}), arange(kTokens)), DType::f32);
  const Tensor weights =
      nn::attention(zero, zero, reshape(identity, {1, 1, kTokens, kTokens}),
                    nn::Mask{.key_valid = reshape(is_text, {1, kTokens})}, {.scale = 1.0});
  metrics.add(Grid{"attention weights", kTokens, kTokens, weights.to_vector<double>()});
}

}  // namespace

FAULT(softmax_masked_row) {
  Fault& fault = lab.fault(
      {.id = "softmax.masked-row",
       .title = "A query that may see nothing turns every gradient into NaN",
       .domain = "attention",
       .seed = "000 1",
       .mechanism =
           "Softmax subtracts the row's maximum. In a row of nothing but -infinity that is "
           "-inf - (-inf) = NaN, and the row of weights is NaN. The loss may never read it, yet "
           "backward multiplies the row's gradient, 0, by its weights: 0 x NaN = NaN reaches the "
           "values, and through them every parameter before this layer. One padded row is enough: "
           "here the loss is 2.5, right and finite, and no gradient of a value is. (In the next "
           "layer the NaN comes forward too: a hidden key has weight 0, and 0 x NaN is NaN.) With "
           "a finite sentinel the row's scores are all alike and its weights uniform: the mean of "
           "V, 3.75 of 1, 2, 4, 8, padding and future included. Sentinels saturate as well: in "
           "fp16 -65504 - 16 is -infinity, and so is -1e9.",
       .symptom =
           "grad_norm is NaN at the first step that holds a padded row, the loss at that step or "
           "the next. With batches of equal length nothing happens.",
       .article_says = "Softmax's input is too large; look at torch.isfinite(loss).",
       .truth =
           "The input here is not too large but empty, and a look at the loss comes too late or "
           "finds it finite. To overwrite the NaN after attention does not help the gradients: "
           "they pass through the softmax all the same.",
       .fix = "Hide padding as keys, not as queries: with padding on the right a causal query then "
              "always sees some text. Where a row can still see nothing (padding on the left, a "
              "window), give it zeros inside the softmax, as masked_softmax here and PyTorch's "
              "attention since 2024 do.",
       .sources =
           {"PyTorch issue 41508 (2020, open): MultiheadAttention gives NaN gradients for fully "
            "masked rows. https://github.com/pytorch/pytorch/issues/41508",
            "PyTorch pull request 42323 (July 2020): why removing the NaN later does not work, "
            "0 * NaN = NaN. https://github.com/pytorch/pytorch/pull/42323",
            "PyTorch pull request 131060 (July 2024): _safe_softmax gives such rows zeros. "
            "https://github.com/pytorch/pytorch/pull/131060",
            "ONNX Runtime issue 28904 (June 2026): with a finite sentinel the row is the mean of "
            "V. https://github.com/microsoft/onnxruntime/issues/28904"},
       .look_alikes =
           "softmax.overflow gives NaN too, from rows that hold +infinity or large finite scores; "
           "here the row holds -infinity only. loss.log-zero makes the NaN in the loss: then "
           "attention's outputs are still finite. A row hidden with -1e9 gives no NaN at all, but "
           "the mean of all values: mask.visibility sees that.",
       .exercise =
           "Overwrite the NaN rows of attention's output with 0 before the loss. Which of these "
           "become finite: the loss, the gradient of the output projection, the gradient of V?",
       .answer =
           "The loss, and the gradient of whatever comes after the overwriting. V stays NaN: its "
           "gradient is the weights, transposed, times the output's gradient, and 0 x NaN is NaN. "
           "Only a finite row inside the softmax helps."});

  // Verses are often longer than 64 bytes but not always, and unpacked: some rows are padded.
  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&hide_with_infinity);
      })
      .remedy([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&hide_keys_only);
      })
      .run(&masked_row)
      .expect("padded row", NAN)
      .expect("dv0", NAN)
      .expect("finite", 8)
      .caught_by("softmax.rows")
      .in_training(
          {.steps = 200, .needs = {{"seq_len", "64"}, {"pack", "false"}, {"documents", "verse"}}});
}

}  // namespace faultline::lab
