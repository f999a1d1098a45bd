#include <cmath>

#include "autograd/functional.h"
#include "core/rng.h"
#include "kernels/layout.h"
#include "lab/case.h"

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
  if (mask.causal && k > position) return false;
  if (valid.defined() && !valid.as<bool>()[at(valid, k)]) return false;
  return !documents.defined() || documents.as<int32_t>()[at(documents, k)] ==
                                     documents.as<int32_t>()[at(documents, position)];
}

// The wrong code: the formula from the textbook, exp(x) / sum exp(x), as it stands.
template <class Visible>
void naive_rows(const KernelArgs& args, float scale, Visible is_visible) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const int64_t length = x.shape[-1];
  std::vector<float> row(static_cast<size_t>(length));
  for (int64_t n = 0; n * length < x.numel(); ++n) {
    float total = 0;
    for (int64_t k = 0; k < length; ++k) {
      float& e = row[static_cast<size_t>(k)];
      const float score = scale * x.as<float>()[offset_of(x, n * length + k)];
      e = is_visible(n, k) ? std::exp(score) : 0;
      total += e;
    }
    for (int64_t k = 0; k < length; ++k) {
      y.as<float>()[offset_of(y, n * length + k)] = row[static_cast<size_t>(k)] / total;
    }
  }
}

void naive_softmax(const KernelArgs& args) {
  naive_rows(args, 1, [](int64_t, int64_t) { return true; });
}
void naive_masked_softmax(const KernelArgs& args) {
  const auto mask = args.attributes.as<MaskAttributes>();
  naive_rows(args, static_cast<float>(mask.scale),
             [&](int64_t row, int64_t k) { return visible(args, mask, row, k); });
}
constexpr KernelRecord kNaiveSoftmax{"softmax/naive", &naive_softmax};
constexpr KernelRecord kNaiveMaskedSoftmax{"masked_softmax/naive", &naive_masked_softmax};

Selection select_naive(const SelectionRequest& request) {
  if (request.dtype == DType::f32) {
    if (&request.op == &definition(Op::softmax)) return {&kNaiveSoftmax, "hand-written"};
    if (&request.op == &definition(Op::masked_softmax)) {
      return {&kNaiveMaskedSoftmax, "hand-written"};
    }
  }
  return KernelSeam::standard(request);
}

// softmax([89 + c, c]) is softmax([89, 0]) for every c; the seed draws a c from 0 to 7.
void two_scores(const RunOptions& options, Metrics& metrics) {
  const auto shift = static_cast<float>(RandomSequence(options.seed, 0).below(8, 0));
  const auto weights = softmax(tensor<float>({89 + shift, shift})).to_vector<double>();
  metrics.measure("weight of 89", weights[0]);
  metrics.measure("weight of 0", weights[1]);
}

}  // namespace

FAULT(softmax_overflow) {
  Fault& fault = lab.fault(
      {.id = "softmax.overflow",
       .title = "exp overflows in a softmax that does not subtract the maximum",
       .domain = "attention",
       .seed = "000 1",
       .mechanism =
           "exp(x) exceeds the largest f32 above x = 88.7228. A softmax that computes exp(x) / sum "
           "exp(x) as it stands gets inf / inf = NaN for such a score: [89, 0] gives NaN. With the "
           "row's maximum m subtracted first, the largest exponent is exp(0) = 1 and the same row "
           "gives [1, 2.2e-39]; mathematically nothing changes, because exp(-m) cancels.",
       .symptom = "The loss becomes NaN all at once, often after hundreds of good steps, when one "
                  "attention score first exceeds 88.7. One such row poisons every gradient.",
       .article_says = "The input of softmax is too large; look at torch.isfinite(loss).",
       .truth = "A framework's softmax subtracts the maximum and takes any finite input. NaN needs "
                "scores that are infinite already, a row of nothing but -inf, or a hand-written "
                "exp / sum like this one. A look at the loss says that it happened, not where.",
       .fix =
           "Subtract the row's maximum before exp, or call the framework's softmax. Scale scores "
           "before they are rounded to 16 bits.",
       .sources = {
           "QwenLM/Qwen issue 761 (2023) and transformers issue 33312 (2024): fp16 scores overflow "
           "and the output is '!!!!'. https://github.com/huggingface/transformers/issues/33312",
           "Blanchard, Higham, Higham: Accurately computing the log-sum-exp and softmax functions, "
           "IMA J. Numer. Anal. 41 (2021). https://doi.org/10.1093/imanum/draa038"}});

  fault.variant("naive", "softmax([89, 0]) without the maximum subtracted is NaN")
      .wrong([](Context& context) { return context.seams.replace<KernelSeam>(&select_naive); })
      .run(&two_scores)
      .expect("weight of 89", NAN)
      .caught_by("finite.first")
      // Scores of a fresh model stay below 5; weights this large give some above 89.
      .in_training({.steps = 200, .needs = {{"init_std", "2"}}});
}

}  // namespace faultline::lab
