#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/fused_attention.h"

// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
namespace faultline::lab {
namespace {

float& at(const TensorView& view, int64_t b, int64_t h, int64_t t, int64_t d) {
  const Strides& step = view.strides;
  return view.as<float>()[b * step[0] + h * step[1] + t * step[2] + d * step[3]];
}

// Calls body(b, k) for every key that is padding.
template <class Body>
void each_padding(const KernelArgs& args, Body&& body) {
  const TensorView& valid = args.inputs[3];
  if (!valid.defined()) return;
  for (int64_t n = 0; n < valid.numel(); ++n) {
    if (!valid.as<bool>()[offset_of(valid, n)]) body(n / valid.shape[1], n % valid.shape[1]);
  }
}

// page: begin
// The wrong code: y is the sum over all keys, and the hidden ones take part with weight 0.
void add_with_weight_zero(const KernelArgs& args) {
  const TensorView& v_BGKD = args.inputs[2];
  const TensorView& y_BHQD = args.outputs[0];
  const Shape& size = y_BHQD.shape;
  const int64_t group = size[1] / v_BGKD.shape[1];
  each_padding(args, [&](int64_t b, int64_t k) {
    for (int64_t h = 0; h < size[1]; ++h) {
      for (int64_t q = 0; q < size[2]; ++q) {
        for (int64_t d = 0; d < size[3]; ++d) {
          at(y_BHQD, b, h, q, d) += 0.0F * at(v_BGKD, b, h / group, k, d);
        }
      }
    }
  });
}
// page: end

// What padding holds is what its memory held before.
void fill_padding(const KernelArgs& args, float value) {
  const TensorView& v_BGKD = args.inputs[2];
  each_padding(args, [&](int64_t b, int64_t k) {
    for (int64_t g = 0; g < v_BGKD.shape[1]; ++g) {
      for (int64_t d = 0; d < v_BGKD.shape[3]; ++d) at(v_BGKD, b, g, k, d) = value;
    }
  });
}

template <class Filled>
void over_all_keys(const KernelArgs& args, Filled filled) {
  filled(args);
  cpu::flash_attention(args);
  add_with_weight_zero(args);
}

// Padding that nobody wrote: NaN, as in fresh memory of a debugging allocator.
void unwritten(const KernelArgs& args) {
  over_all_keys(args, [](const KernelArgs& all) { fill_padding(all, NAN); });
}
// The remedy: fill with zeros what nobody writes.
void zero_filled(const KernelArgs& args) {
  over_all_keys(args, [](const KernelArgs& all) { fill_padding(all, 0); });
}

constexpr FusedKernels kOverAllKeys{{"flash_attention/over all keys", &unwritten}};
constexpr FusedKernels kZeroFilled{{"flash_attention/over all keys, zero-filled", &zero_filled}};

// Two tokens and two slots that hold NaN. Scores are 0, so the last row is the mean of 1 and 2.
void two_of_four(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 4;
  const Shape shape{1, 1, kTokens, 1};
  const Tensor q = normal(shape, 0, 1, options.seed, stream_of("queries"));
  const Tensor v = tensor<float>({1, 2, NAN, NAN}, shape);
  const Tensor valid = cast(tensor<float>({1, 1, 0, 0}, {1, kTokens}), DType::boolean);
  const Tensor y = nn::attention(q, zeros(shape), v, {.causal = true, .key_valid = valid});
  const std::vector<double> rows = y.to_vector<double>();
  metrics.measure("first row", rows[0]);
  metrics.measure("last row", rows[3]);
  std::vector<double> is_number;
  for (const double row : rows) is_number.push_back(std::isnan(row) ? 0 : 1);
  metrics.add(Grid{"rows that are numbers", kTokens, 1, is_number, {"query"}, {"output"}});
}

}  // namespace

FAULT(attn_nan_in_masked_v) {
  Fault& fault = lab.fault(
      {.id = "attn.nan-in-masked-v",
       .title = "A NaN that attention hides reaches every output",
       .domain = "attention",
       .mechanism =
           "A hidden key has weight 0. Where the output is computed as the product of weights and "
           "values over all keys, its value takes part as 0 x v. That is 0 for every number and "
           "NaN for NaN and infinities: one bad element in padding or in an unused slot of a "
           "cache makes that element NaN in every row of its head, in the same layer, and all "
           "logits with it. With the values 1, 2, NaN, NaN, of which two are hidden, the last row "
           "is 1.5; over all keys it is NaN.",
       .symptom =
           "NaN now and then, for some batches only: it depends on what the memory of padding or "
           "of a free cache page held before. Zeroing the cache at the start helps until a page "
           "is used a second time.",
       .truth =
           "A mask is a promise about what is read. Adding -infinity to a score keeps it for the "
           "weights and not for the product; the same holds for keys, whose NaN scores must be "
           "selected away and not added to, and for gradients, where 0 x NaN comes back.",
       .fix = "Skip hidden keys, or select zeros in place of what they hold, before both products. "
              "Test with NaN in every slot that nobody may read.",
       .sources =
           {"pytorch issue 101967 (May 2023): scaled_dot_product_attention gives NaN for NaN at "
            "masked positions. https://github.com/pytorch/pytorch/issues/101967",
            "transformers issue 38690 (June 2025): NaN of padding tokens spreads to all positions "
            "in the next attention. https://github.com/huggingface/transformers/issues/38690"},
       .look_alikes =
           "softmax.masked-row makes NaN in rows that see no key at all, whatever the values "
           "hold; softmax.overflow makes it from scores that are infinite. Here the scores and "
           "the weights are all numbers.",
       .exercise = "Attention weights are exact zeros at hidden keys, and v is finite "
                   "everywhere but for one infinity at a hidden key. What is the output?",
       .answer = "NaN in that column of every row: 0 times infinity is NaN too."});
  fault.only_variant()
      .wrong(fused_by(kOverAllKeys))
      .remedy(fused_by(kZeroFilled))
      .run(&two_of_four)
      .expect("last row", NAN)
      .caught_by("attention.parity")
      .in_training({.steps = 200, .needs = {{"pack", "false"}, {"documents", "verse"}}});
}

}  // namespace faultline::lab
