#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/fused_attention.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the kernel counts the keys to the left of the query, which the window of a model
// holds beside the query itself. It is handed W, and gives W + 1.
void keys_to_the_left(FlashAttentionAttributes& attributes) {
  if (attributes.mask.window > 0) attributes.mask.window += 1;
}

void wider(const KernelArgs& args) { cpu::flash_attention(changed(args, &keys_to_the_left)); }
// page: end

void wider_backward(const KernelArgs& args) {
  cpu::flash_attention_backward(changed(args, &keys_to_the_left));
}

constexpr FusedKernels kOneMore{{"flash_attention/window to the left", &wider},
                                {"flash_attention_backward/window to the left", &wider_backward}};

// The remedy: hand it W - 1, which is the number of keys to the left.
void all_but_itself(FlashAttentionAttributes& attributes) {
  if (attributes.mask.window > 0) attributes.mask.window -= 1;
}
// A window of 1 leaves none to the left, and 0 means all; nobody asks for it here.
void forward_mended(const KernelArgs& args) { wider(changed(args, &all_but_itself)); }
void backward_mended(const KernelArgs& args) { wider_backward(changed(args, &all_but_itself)); }

constexpr FusedKernels kMended{{"flash_attention/window less itself", &forward_mended},
                               {"flash_attention_backward/window less itself", &backward_mended}};

constexpr int64_t kWindowTokens = 8;
constexpr int64_t kWindow = 4;

// All scores are 0 and values are 2^key, so a row gives the mean of the values that it sees.
void eight_tokens(const RunOptions& options, Metrics& metrics) {
  const nn::Mask mask{.causal = true, .window = kWindow};
  const Tensor q = normal({1, 1, kWindowTokens, 1}, 0, 1, options.seed, stream_of("queries"));
  const Tensor k = zeros({1, 1, kWindowTokens, 1});
  const Tensor v = tensor<float>({1, 2, 4, 8, 16, 32, 64, 128}, {1, 1, kWindowTokens, 1});
  const std::vector<double> y = nn::attention(q, k, v, mask).to_vector<double>();
  metrics.measure("row 3", y[3]);
  metrics.measure("row 7", y[7]);

  const Tensor rows = reshape(arange(kWindowTokens), {kWindowTokens, 1});
  const Tensor identity = cast(equal(rows, arange(kWindowTokens)), DType::f32);
  const Shape wide{1, 1, kWindowTokens, kWindowTokens};
  const Tensor weights = nn::attention(zeros(wide), zeros(wide), reshape(identity, wide), mask);
  metrics.add(Grid{"attention weights", kWindowTokens, kWindowTokens, weights.to_vector<double>()});
}

}  // namespace

FAULT(attn_window_off_by_one) {
  Fault& fault = lab.fault(
      {.id = "attn.window-off-by-one",
       .title = "A sliding window holds one key too many",
       .domain = "attention",
       .mechanism =
           "A window of W lets a query see itself and the W - 1 keys before it. Kernels take the "
           "number of keys to the left and to the right, both inclusive, so that W becomes W - 1 "
           "and 0. Handed W, they show W + 1 keys. With equal scores, a window of 4 and the "
           "values 2^key the eighth row should be (16 + 32 + 64 + 128) / 4 = 60; with five keys "
           "it is 248 / 5 = 49.6. Rows 0 to 3 are right: they have no more keys to see.",
       .symptom =
           "Short inputs are exact. Beyond W positions logits differ a little between two "
           "backends of one model, or between prefill and decoding, and nobody can say which is "
           "right.",
       .truth =
           "Both conventions exist, and one of them also in a mask that sees both ways "
           "(|distance| < W or <= W). A cache that keeps W entries cannot even answer the wrong "
           "one. A window of 0 must mean none, never a query that sees nothing.",
       .fix = "Say at the boundary what is counted, and convert there: left = W - 1. Test with "
              "more positions than the window, and count the keys of one row.",
       .sources =
           {"transformers issue 39408 (July 2025): window_size = (W, W) for a window of W. "
            "https://github.com/huggingface/transformers/issues/39408",
            "transformers issue 29623 (March 2024): eager attention sees 2048 keys of Mistral's "
            "window, FlashAttention one more. "
            "https://github.com/huggingface/transformers/issues/29623",
            "zml pull request 763 (September 2026): the left window includes the current "
            "position. https://github.com/zml/zml/pull/763",
            "axlearn pull request 1009 (February 2025): a sliding window size of 8 sees 9. "
            "https://github.com/apple/axlearn/pull/1009"},
       .look_alikes =
           "A window that is dropped altogether (kernel.silent-fallback) shows all keys, not one "
           "more. A causal mask aligned to the wrong corner is wrong in the first rows too.",
       .exercise = "A window of 4096 on a model with 32 layers: how many positions further back "
                   "can the last layer see than it should, and does a test with 4096 tokens "
                   "notice?",
       .answer = "One position a layer, so 32. With 4096 tokens no row has more keys than its "
                 "window, and nothing differs."});
  fault.only_variant()
      .wrong(fused_by(kOneMore))
      .remedy(fused_by(kMended))
      .run(&eight_tokens)
      .expect_within("row 7", 49.6, 1e-5, "a fifth is no f32 number")
      .caught_by("attention.parity")
      .in_training({.steps = 200, .needs = {{"window", "8"}}});
}

}  // namespace faultline::lab
