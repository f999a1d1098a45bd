#include <algorithm>
#include <cmath>
#include <string_view>

#include "autograd/functional.h"
#include "core/rng.h"
#include "kernels/layout.h"
#include "kernels/visibility.h"
#include "lab/case.h"
#include "nn/attention.h"

namespace faultline::lab {
namespace {

// Which keys a row of attention scores may see; plain softmax sees all.
bool visible(const KernelArgs& args, const MaskAttributes& mask, int64_t row, int64_t k) {
  const Shape& shape = args.inputs[0].shape;
  const int64_t b = row / (shape[1] * shape[2]);
  const int64_t position = mask.query_offset + row % shape[2];
  const TensorView& valid = args.inputs[1];
  const TensorView& documents = args.inputs[2];
  const auto at = [&](const TensorView& view, int64_t key) {
    return offset_of(view, b * shape[3] + key);
  };
  if (!sees(mask, position, k)) return false;
  if (valid.defined() && !valid.as<bool>()[at(valid, k)]) return false;
  return !documents.defined() || documents.as<int32_t>()[at(documents, k)] ==
                                     documents.as<int32_t>()[at(documents, position)];
}

// ---- naive: no maximum subtracted ---------------------------------------------------------------
// page: begin
// The wrong code: the formula from the textbook, exp(x) / sum exp(x), as it stands.
void exp_over_sum(std::vector<float>& row) {
  float total = 0;
  for (float& x : row) {
    x = std::exp(x);
    total += x;
  }
  for (float& x : row) x /= total;
}
// page: end

// The remedy: the greatest exponent is exp(0) = 1. A row that sees nothing has weights of 0.
void subtract_maximum(std::vector<float>& row) {
  const float greatest = *std::max_element(row.begin(), row.end());
  if (greatest == -INFINITY) return row.assign(row.size(), 0);
  for (float& x : row) x -= greatest;
  exp_over_sum(row);
}

using RowSoftmax = void(std::vector<float>&);

// Applies it to each row of scores; hidden ones are -infinity.
template <class Visible>
void each_row(const KernelArgs& args, RowSoftmax* apply, float scale, Visible is_visible) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const int64_t length = x.shape[-1];
  std::vector<float> row;
  for (int64_t n = 0; n * length < x.numel(); ++n) {
    row.clear();
    for (int64_t k = 0; k < length; ++k) {
      const float score = scale * x.as<float>()[offset_of(x, n * length + k)];
      row.push_back(is_visible(n, k) ? score : -INFINITY);
    }
    apply(row);
    for (int64_t k = 0; k < length; ++k) {
      y.as<float>()[offset_of(y, n * length + k)] = row[static_cast<size_t>(k)];
    }
  }
}

template <RowSoftmax* apply>
void plain_kernel(const KernelArgs& args) {
  each_row(args, apply, 1, [](int64_t, int64_t) { return true; });
}
template <RowSoftmax* apply>
void masked_kernel(const KernelArgs& args) {
  const auto mask = args.attributes.as<MaskAttributes>();
  each_row(args, apply, static_cast<float>(mask.scale),
           [&](int64_t row, int64_t k) { return visible(args, mask, row, k); });
}

// The two kernels of attention and of plain softmax.
struct SoftmaxKernels {
  KernelRecord plain;
  KernelRecord masked;
};
constexpr SoftmaxKernels kNaive{{"softmax/naive", &plain_kernel<&exp_over_sum>},
                                {"masked_softmax/naive", &masked_kernel<&exp_over_sum>}};
constexpr SoftmaxKernels kShifted{{"softmax/shifted", &plain_kernel<&subtract_maximum>},
                                  {"masked_softmax/shifted", &masked_kernel<&subtract_maximum>}};

Plant replace_kernels(const SoftmaxKernels& kernels) {
  return [&kernels](Context& context) {
    return context.seams.replace<KernelSeam>([&kernels](const SelectionRequest& request) {
      if (request.dtype == DType::f32 && &request.op == &definition(Op::softmax)) {
        return Selection{&kernels.plain, "hand-written"};
      }
      if (request.dtype == DType::f32 && &request.op == &definition(Op::masked_softmax)) {
        return Selection{&kernels.masked, "hand-written"};
      }
      return KernelSeam::standard(request);
    });
  };
}

// softmax([89 + c, c]) is softmax([89, 0]) for every c; the seed draws a c from 0 to 7.
void two_scores(const RunOptions& options, Metrics& metrics) {
  const auto shift = static_cast<float>(RandomSequence(options.seed, 0).below(8, 0));
  const auto weights = softmax(tensor<float>({89 + shift, shift})).to_vector<double>();
  metrics.measure("weight of 89", weights[0]);
  metrics.measure("weight of 0", weights[1]);
}

// The picture: the weight that the larger of two scores d and 0 gets.
void weights_by_difference(const RunOptions& options, Metrics& metrics) {
  two_scores(options, metrics);
  Curve curve{"weight of the larger score, by the difference", {}, {}};
  for (int difference = 0; difference <= 100; difference += 2) {
    const auto weights = softmax(tensor<float>({static_cast<float>(difference), 0}));
    curve.x.push_back(difference);
    curve.y.push_back(weights.to_vector<double>()[0]);
  }
  metrics.add(std::move(curve));
}

// ---- scale-after: fp16 scores that are scaled too late ------------------------------------------

// The wrong code: products of queries and keys are kept in fp16, and scaled only then.
Tensor scale_after_fp16(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor kept = cast(cast(scores_BHQK, DType::f16), DType::f32);
  return nn::AttentionWeightsSeam::standard(kept, mask, scale);
}

// The remedy: scaled first, then kept in fp16.
Tensor scale_before_fp16(const Tensor& scores_BHQK, const nn::Mask& mask, double scale) {
  const Tensor kept = cast(cast(scores_BHQK * scale, DType::f16), DType::f32);
  return nn::AttentionWeightsSeam::standard(kept, mask, 1.0);
}

// The largest scaled score that a masked softmax is given.
class LargestScore {
 public:
  explicit LargestScore(Context& context)
      : subscription_(context.events.subscribe<LaunchEvent>([this](const LaunchEvent& event) {
          if (std::string_view(event.launch.label.op) != "masked_softmax") return;
          const TensorView& scores = event.launch.args.inputs[0];
          const double scale = event.launch.args.attributes.as<MaskAttributes>().scale;
          for (int64_t n = 0; n < scores.numel(); ++n) {
            value = std::max(value, scale * scores.as<float>()[offset_of(scores, n)]);
          }
        })) {}

  double value = -INFINITY;

 private:
  EventBus::Subscription subscription_;
};

// Two tokens; the first query and its own key hold 23 in all of 128 elements: 128 x 23 x 23 =
// 67712, scaled by 1 / sqrt(128) 5985. The second key is random.
void large_queries(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kHeadSize = 128;
  const Tensor large = full({1, 1, 1, kHeadSize}, 23);
  const Tensor other = normal({1, 1, 1, kHeadSize}, 0, 1, options.seed, stream_of("second key"));
  const Tensor q = expand(large, {1, 1, 2, kHeadSize});
  const Tensor keys[] = {large, other};
  const Tensor k = cat(keys, 2);
  const Tensor v = tensor<float>({1, 2}, {1, 1, 2, 1});
  const LargestScore largest(Context::current());
  const double scale = 1 / std::sqrt(static_cast<double>(kHeadSize));
  const auto out = nn::attention(q, k, v, nn::Mask{}, {.scale = scale}).to_vector<double>();
  metrics.measure("largest scaled score", largest.value);
  metrics.measure("output", out[0]);
}

}  // namespace

FAULT(softmax_overflow) {
  Fault& fault = lab.fault(
      {.id = "softmax.overflow",
       .title = "Attention scores leave a float's range at the softmax",
       .domain = "attention",
       .seed = "000 1",
       .mechanism =
           "exp(x) exceeds the largest f32 above x = 88.7228. A softmax that computes exp(x) / sum "
           "exp(x) as it stands gets inf / inf = NaN for such a score: [89, 0] gives NaN. With the "
           "row's maximum m subtracted first, the largest exponent is exp(0) = 1 and the same row "
           "gives [1, 2.2e-39]; mathematically nothing changes, because exp(-m) cancels. "
           "Subtracting does not save a score that is infinite already: fp16 ends at 65504, and "
           "a query and a key of 128 elements of 23 have the product 128 x 23 x 23 = 67712 = inf, "
           "although it would be 5985 after the scale 1 / sqrt(128). inf - inf is NaN again.",
       .symptom = "The loss becomes NaN all at once, often after hundreds of good steps, when one "
                  "attention score first exceeds the limit. One such row poisons every gradient.",
       .article_says = "The input of softmax is too large; look at torch.isfinite(loss).",
       .truth = "A framework's softmax subtracts the maximum and takes any finite input. NaN needs "
                "scores that are infinite already, a row of nothing but -inf, or a hand-written "
                "exp / sum like this one. A look at the loss says that it happened, not where.",
       .fix =
           "Subtract the row's maximum before exp, or call the framework's softmax. Scale queries "
           "and keys by d^(-1/4) each before their product is rounded to 16 bits, or keep "
           "products in f32.",
       .sources =
           {"QwenLM/Qwen3 issue 761 (July 2024): Qwen2 in fp16 writes nothing but exclamation "
            "marks, with NaN among its logits. https://github.com/QwenLM/Qwen3/issues/761",
            "QwenLM/Qwen3 issue 910 (September 2024): in fp16 the products of queries and keys "
            "overflow, and softmax makes NaN of them. https://github.com/QwenLM/Qwen3/issues/910",
            "transformers pull request 33312 (September 2024): Qwen2-VL in fp16 writes nothing but "
            "exclamation marks. https://github.com/huggingface/transformers/pull/33312",
            "Blanchard, Higham, Higham: Accurately computing the log-sum-exp and softmax "
            "functions, IMA J. Numer. Anal. 41 (2021). https://doi.org/10.1093/imanum/draa038"},
       .look_alikes =
           "softmax.masked-row: the row holds -infinity only, and no score is large. "
           "loss.log-zero: attention's outputs are finite, the loss is not. Gradients that "
           "overflow fp16 show first in the backward pass; here the first bad number is in the "
           "forward pass, at the softmax or just before it.",
       .exercise =
           "A head has 64 elements. From which size on do a query and a key of equal elements "
           "overflow fp16 before scaling, and what score would they have had after it?",
       .answer =
           "An element e with 64 e e >= 65520, where rounding goes to infinity: e = 31.996 and "
           "more. With e = 32 the score is 65536, infinite in fp16; scaled by 1 / sqrt(64) it is "
           "8192, far inside the range. Scaling each factor by 64^(-1/4) first gives the same 8192 "
           "and never leaves it."});

  fault.variant("naive", "softmax([89, 0]) without the maximum subtracted is NaN")
      .wrong(replace_kernels(kNaive))
      .remedy(replace_kernels(kShifted))
      .run(&weights_by_difference)
      .expect("weight of 89", NAN)
      .fixed_within(1e-5, "another exp, and 2.2e-39 has 20 bits in f32")
      .caught_by("finite.first")
      // Scores of a fresh model stay below 5; weights this large give some above 89.
      // Only math asks a softmax kernel.
      .in_training({.steps = 200, .needs = {{"init_std", "2"}, {"attention", "math"}}});
  fault.variant("scale-after", "fp16 scores that are scaled too late: 67712 is infinite")
      .wrong([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&scale_after_fp16);
      })
      .remedy([](Context& context) {
        return context.seams.replace<nn::AttentionWeightsSeam>(&scale_before_fp16);
      })
      .run(&large_queries)
      .expect("largest scaled score", INFINITY)
      .expect("output", NAN)
      .fixed_within(5e-4, "fp16 rounds 5984.95 to 11 bits")
      .caught_by("finite.first")
      .not_in_training("comes with mixed precision");
}

}  // namespace faultline::lab
