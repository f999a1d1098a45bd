#include <algorithm>

#include "autograd/functional.h"
#include "core/error.h"
#include "lab/case.h"
#include "nn/attention.h"
#include "nn/sdpa_rules.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

constexpr int64_t kCallTokens = 64;
constexpr int64_t kCallHead = 100;

// page: begin
// The wrong code: a causal mask written out as a tensor, "to be explicit". Flash takes no mask
// tensor, and the memory-efficient kernel takes one only where 8 divides the head size.
nn::Mask tril(const Batch& batch) {
  const int64_t T = batch.inputs.size(1);
  const std::vector<uint8_t> visible = nn::visibility(nn::Mask{.causal = true}, 1, T, T);
  const Tensor ones = tensor(std::vector<float>(visible.begin(), visible.end()), {1, 1, T, T});
  return {.causal = false, .keep = cast(ones, DType::boolean)};
}
// page: end

// The remedy: say is_causal, where the tensor says no more than that.
nn::Mask is_causal(const Batch& batch) {
  const int64_t T = batch.inputs.size(1);
  const nn::Mask causal{.causal = true};
  const bool same = nn::visibility(tril(batch), 1, T, T) == nn::visibility(causal, 1, T, T);
  return same ? causal : tril(batch);
}

// The article's remedy: the mask must be bool.
nn::Mask bool_mask(const Batch& batch) {
  nn::Mask mask = tril(batch);
  mask.keep = cast(mask.keep, DType::boolean);
  return mask;
}

Plant masked_by(nn::Mask (*mask)(const Batch&)) {
  return [mask](Context& context) { return context.seams.replace<train::MaskSeam>(mask); };
}

Shape heads(int64_t count, int64_t positions, int64_t size) { return {2, count, positions, size}; }

nn::SdpaCall call_of(DType dtype, int64_t head_size) {
  const Shape shape = heads(8, kCallTokens, head_size);
  return {.dtype = dtype, .query = shape, .key = shape, .value = shape};
}

// The calls of the golden table (tests/nn/sdpa_rules_test.cpp), in its order.
std::vector<nn::SdpaCall> table() {
  const nn::SdpaCall plain = call_of(DType::bf16, 128);
  std::vector<nn::SdpaCall> calls(14, plain);
  calls[1].has_mask = true;
  calls[1].mask = {kCallTokens, kCallTokens};
  calls[2] = call_of(DType::f32, 128);
  calls[3] = call_of(DType::f64, 128);
  calls[4].query = calls[4].key = calls[4].value = {16, kCallTokens, 128};
  calls[5] = calls[6] = call_of(DType::bf16, kCallHead);
  calls[6].has_mask = true;
  calls[6].mask = calls[1].mask;
  calls[7] = call_of(DType::bf16, 320);
  calls[8].is_causal = true;
  calls[8].query = heads(8, 2, 128);
  calls[8].key = calls[8].value = heads(8, 5, 128);
  calls[9] = call_of(DType::bf16, 192);
  calls[9].value = heads(8, kCallTokens, 128);
  calls[10] = call_of(DType::bf16, 208);
  calls[10].requires_grad = true;
  calls[11].last_strides_are_one = false;
  calls[12].key = calls[12].value = heads(8, 0, 128);
  calls[13].key = calls[13].value = heads(2, kCallTokens, 128);
  return calls;
}

// The picture: which backend each of the fourteen gets. On a Context of its own: nobody runs them.
Grid picture() {
  Context quiet;
  const ContextGuard guard(quiet);
  const std::vector<nn::SdpaCall> calls = table();
  // What sets each call apart from bf16 of head size 128.
  const std::vector<std::string> names = {"bf16",
                                          "mask",
                                          "f32",
                                          "f64",
                                          "3 dimensions",
                                          "head 100",
                                          "head 100, mask",
                                          "head 320",
                                          "causal, 2 x 5",
                                          "head 192, value 128",
                                          "gradient, head 208",
                                          "last stride",
                                          "no keys",
                                          "2 key heads"};
  Grid grid{"backend that a call gets",
            static_cast<int64_t>(calls.size()),
            4,
            std::vector<double>(calls.size() * 4),
            {"call", names},
            {"backend", {"flash", "efficient", "cuDNN", "math"}}};
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto backend = static_cast<size_t>(*nn::sdpa_choice(calls[i], {}).chosen);
    grid.values[i * 4 + backend] = 1;
  }
  return grid;
}

// The figures of a backend: whether PyTorch would run math, and how many others refused.
void pytorch_chooses(const nn::Mask& mask, Metrics& metrics) {
  nn::SdpaCall call = call_of(DType::bf16, kCallHead);
  call.has_mask = mask.keep.defined();
  if (call.has_mask) call.mask = mask.keep.shape();
  call.is_causal = mask.causal;
  const nn::SdpaChoice choice = nn::sdpa_choice(call, {});
  metrics.count("calls by math", choice.chosen == nn::SdpaBackend::math ? 1 : 0);
  metrics.count("backends that refused", static_cast<double>(choice.rejected.size()));
}

// Our own attention under a policy that requires flash: 1 where that is refused aloud.
void require_flash(const nn::Mask& mask, Metrics& metrics) {
  const Tensor q = zeros({1, 1, kCallTokens, 4});
  const nn::AttentionPolicy policy =
      nn::AttentionPolicy::require(nn::AttentionImplementation::flash);
  double refused = 0;
  try {
    nn::attention(q, q, q, mask, {.policy = policy});
  } catch (const InvalidArgument&) {
    refused = 1;
  }
  metrics.count("refused where flash is required", refused);
}

void one_call(const RunOptions&, Metrics& metrics) {
  Batch batch;
  batch.inputs = zeros({1, kCallTokens}, DType::i32);
  const nn::Mask mask = Context::current().seams.call<train::MaskSeam>(batch);
  pytorch_chooses(mask, metrics);
  require_flash(mask, metrics);
  metrics.add(picture());
}

}  // namespace

FAULT(sdpa_fallback) {
  Fault& fault = lab.fault(
      {.id = "sdpa.fallback",
       .title = "scaled_dot_product_attention takes its slow path without a word",
       .domain = "attention",
       .seed = "000 4.2",
       .mechanism =
           "PyTorch tries its backends in order and takes the first whose filters all pass; math, "
           "which keeps all T x T scores, passes always. On sm89 without cuDNN, in bf16: head size "
           "128 gets flash; with a mask tensor, of any dtype, efficient. Head size 100 gets flash, "
           "which pads it; with a mask flash refuses the tensor and efficient refuses 100, which 8 "
           "does not divide, and math runs: one argument more, and memory grows with T squared. So "
           "do f64, inputs of three dimensions, strides other than 1 and grouped heads without "
           "enable_gqa. The reasons are printed only where no backend is left.",
       .symptom = "The same numbers, several times slower and out of memory at lengths that worked "
                  "before, after a change of mask, dtype or head size.",
       .article_says =
           "A static check of the syntax tree decides: a mask must be bool, dropout a constant, "
           "and dtypes float16 or bfloat16; else the call leaves flash attention.",
       .truth =
           "The filters run in C++ on each call and look at tensors: dtype, shape, strides, "
           "gradient, device. A bool mask is refused by flash as any other, as the claimed run "
           "shows; f32 has the memory-efficient kernel.",
       .fix = "Say is_causal in place of a mask tensor, choose a head size that 8 divides, and "
              "allow only fused backends with sdpa_kernel, so that a refusal is an error with its "
              "reasons.",
       .sources =
           {"PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp at commit 001f694a "
            "(2026): the filters, in their order. "
            "https://github.com/pytorch/pytorch/blob/001f694a/aten/src/ATen/native/transformers/"
            "cuda/sdp_utils.cpp",
            "sam2 issue 329 (December 2024): sdpa_kernel does not warn when it falls back; allow "
            "one backend to know. https://github.com/facebookresearch/sam2/issues/329",
            "flash-attention issue 1321 (November 2024): with flash alone allowed, the reason: it "
            "does not support non-null attn_mask. "
            "https://github.com/Dao-AILab/flash-attention/issues/1321"},
       .look_alikes =
           "kernel.silent-fallback is wrong numbers, or a path of this framework that was asked "
           "for and did not run. Recompilation under torch.compile is slow too, and only for the "
           "first calls of a shape.",
       .exercise = "A model has head size 100, bf16 and a padding mask. Which two changes, each by "
                   "itself, leave the math backend?",
       .answer = "Pad the head size to 104: efficient takes it with the mask. Or drop the mask "
                 "tensor, by packing sequences without padding: flash takes 100."});
  fault.only_variant()
      .wrong(masked_by(&tril))
      .remedy(masked_by(&is_causal))
      .claimed("the mask must be of dtype bool", masked_by(&bool_mask))
      .run(&one_call)
      .expect("calls by math", 1)
      .expect("backends that refused", 2)
      .expect("refused where flash is required", 1)
      .caught_by("dispatch.audit")
      .not_in_training("the rules are those of PyTorch on a CUDA device");
}

}  // namespace faultline::lab
