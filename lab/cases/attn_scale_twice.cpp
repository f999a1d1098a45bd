#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/fused_attention.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the kernel was written for raw queries, the caller's scale is 1 / sqrt(D) by
// itself, and whoever joined the two multiplies both.
void scale_again(FlashAttentionAttributes& attributes) {
  attributes.mask.scale *= attributes.mask.scale;
}

void scaled_twice(const KernelArgs& args) { cpu::flash_attention(changed(args, &scale_again)); }
// page: end

void scaled_twice_backward(const KernelArgs& args) {
  cpu::flash_attention_backward(changed(args, &scale_again));
}

constexpr FusedKernels kTwice{{"flash_attention/scaled twice", &scaled_twice},
                              {"flash_attention_backward/scaled twice", &scaled_twice_backward}};

constexpr int64_t kScaledHead = 64;

// The raw dots are 64 and 0, the first value is 1 and the second 0: the output is the weight of
// the first key.
void two_keys(Metrics& metrics) {
  const Tensor one = ones({1, 1, 1, kScaledHead});
  const Tensor none = zeros({1, 1, 1, kScaledHead});
  const Tensor both[] = {one, none};
  const Tensor keys = cat(both, 2);
  const Tensor y = nn::attention(one, keys, keys, {.causal = false});
  metrics.measure("weight of the key", y.to_vector<double>()[0]);
}

// The picture: the values are the first rows of the identity, so the output begins with the
// weights.
void scaled_weights(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kScaledTokens = 8;
  const Shape shape{1, 1, kScaledTokens, kScaledHead};
  const Tensor q = normal(shape, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = normal(shape, 0, 2, options.seed, stream_of("keys"));
  const Tensor rows = reshape(arange(kScaledTokens), {kScaledTokens, 1});
  const Tensor v = reshape(cast(equal(rows, arange(kScaledHead)), DType::f32), shape);
  const Tensor y = nn::attention(q, k, v, {.causal = true});
  const Tensor weights = slice(y, 3, 0, kScaledTokens);
  metrics.add(Grid{"attention weights", kScaledTokens, kScaledTokens, weights.to_vector<double>()});
}

void weigh_two_keys(const RunOptions& options, Metrics& metrics) {
  two_keys(metrics);
  scaled_weights(options, metrics);
}

}  // namespace

FAULT(attn_scale_twice) {
  Fault& fault = lab.fault(
      {.id = "attn.scale-twice",
       .title = "Attention scores are scaled twice",
       .domain = "attention",
       .mechanism =
           "Scores are divided by sqrt(D) so that their spread does not grow with the head size. "
           "Where a model scales its queries and the fused kernel scales by default, they are "
           "divided by D. With D = 64 and raw dots of 64 and 0 the scores should be 8 and 0, and "
           "the first key's weight 1 / (1 + exp(-8)) = 0.999665; scaled twice they are 1 and 0, "
           "and the weight is 1 / (1 + exp(-1)) = 0.731059. Never scaled they are 64 and 0, and "
           "the weight is 1.",
       .symptom =
           "Nothing crashes. A model trained so learns queries that are sqrt(D) times larger and "
           "is nearly as good; a model trained otherwise and loaded here becomes dull, repeats "
           "itself, and gives other logits than its authors', more so on long inputs.",
       .truth =
           "The scale belongs to one side. A default that depends on D is convenient until "
           "somebody's queries are scaled already, and no shape or dtype shows it. Splitting the "
           "scale into its square root on queries and on keys is not this fault.",
       .fix = "Let one side scale: pass scale = 1 where the queries bring theirs. Compare each "
              "path with attention written out in f64, with scores that are not small.",
       .sources =
           {"transformers pull request 38290 (May 2025): OPT scaled its queries, and sdpa scaled "
            "again by default. https://github.com/huggingface/transformers/pull/38290",
            "transformers pull request 44397 (March 2026): GPT-2's own scaling never reached sdpa "
            "and FlashAttention. https://github.com/huggingface/transformers/pull/44397",
            "pytorch-image-models issue 2385 (December 2024): another scale in fused attention "
            "than in the plain one. "
            "https://github.com/huggingface/pytorch-image-models/issues/2385"},
       .look_alikes =
           "A soft-cap flattens large scores only: small ones keep their weights, here they do "
           "not. Rounding to 16 bits moves weights by a part in hundreds, at random; this moves "
           "every row towards the mean. Tiny scores hide it: at the start of a training both "
           "weights are nearly equal.",
       .exercise =
           "With D = 64, how many times larger must the queries of a model become during "
           "training so that scaling twice gives the weights of scaling once? What happens to "
           "such a checkpoint in a program that scales once?",
       .answer =
           "sqrt(64) = 8 times. Elsewhere all its scores are then 8 times too large: the softmax "
           "picks one key in nearly every row."});
  fault.only_variant()
      .wrong(fused_by(kTwice))
      .remedy(&use_math)
      .run(&weigh_two_keys)
      .expect_within("weight of the key", 1 / (1 + std::exp(-1.0)), 1e-6, "exp in f32")
      .fixed_within(1e-6, "another implementation rounds otherwise")
      .caught_by("attention.parity")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
