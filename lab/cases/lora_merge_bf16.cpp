#include <cmath>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/lora.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the sum is kept in bf16, the base's own type.
Tensor merged_in_bf16(const Tensor& weight, const Tensor& product) {
  const Tensor sum = nn::LoraMergeSeam::standard(weight, product);
  return cast(cast(sum, DType::bf16), weight.dtype());
}
// page: end

// What can be done beside it: what the rounding took is kept in f32 and added again.
Tensor with_the_rest(const Tensor& weight, const Tensor& product) {
  const Tensor rounded = merged_in_bf16(weight, product);
  const Tensor lost = nn::LoraMergeSeam::standard(weight, product) - rounded;
  return rounded + lost;
}

constexpr int64_t kMergedWidth = 256;
constexpr int64_t kMergedRank = 64;
constexpr double kWeightDeviation = 0.02;

// The share of the elements that a merge leaves as they were, and of the product that arrives, for
// a weight of bf16 numbers N(0, 0.02) and a product with this deviation.
nn::LayerMerge merge_product_of(double deviation, uint64_t seed) {
  const nn::DropoutKey key(1);
  nn::Linear layer(kMergedWidth, kMergedWidth, nn::Bias::no);
  const Shape shape{kMergedWidth, kMergedWidth};
  copy_(layer.weight().value(), normal(shape, 0, kWeightDeviation, seed, 1, DType::bf16));
  add_lora(layer, "tuned", {.rank = kMergedRank, .alpha = kMergedRank}, key, seed);
  nn::LoraAdapter& adapter = *layer.adapters().front();
  // A sum of r products of normal numbers has the deviation sqrt(r) times those of both.
  const double of_b = deviation / std::sqrt(static_cast<double>(kMergedRank));
  copy_(adapter.parameters()[0]->value(), normal({kMergedRank, kMergedWidth}, 0, 1, seed, 2));
  copy_(adapter.parameters()[1]->value(), normal({kMergedWidth, kMergedRank}, 0, of_b, seed, 3));
  return nn::merge_adapters(layer, nn::Originals::drop).layers.front();
}

double unchanged_share(const nn::LayerMerge& merge) {
  return static_cast<double>(merge.unchanged) / static_cast<double>(merge.elements);
}

void merge_small_product(const RunOptions& options, Metrics& metrics) {
  const NoGrad off;
  const nn::LayerMerge merge = merge_product_of(1e-5, options.seed);
  metrics.measure("unchanged", unchanged_share(merge));
  metrics.measure("survived", merge.survived);

  Curve survived{"share of the product that survives by log10 of its deviation", {}, {}};
  for (double power = -6.5; power <= -2.5; power += 0.5) {
    survived.x.push_back(power);
    survived.y.push_back(merge_product_of(std::pow(10, power), options.seed).survived);
  }
  metrics.add(survived);
}

}  // namespace

FAULT(lora_merge_bf16) {
  Fault& fault = lab.fault(
      {.id = "lora.merge-bf16",
       .title = "An adapter merged into bf16 is mostly rounded away",
       .domain = "adapters",
       .mechanism =
           "bf16 has 8 significant bits: neighbours of a number w are between 2^-8 |w| and "
           "2^-7 |w| apart. What is added must be more than half of that, or the sum rounds back to "
           "w. For weights N(0, 0.02) the spacing is about 1e-4, and a product s B A with the "
           "deviation 1e-5 leaves 88 % of the elements as they were; 28 % of the update "
           "survives, measured along the product. At 1e-4 32 % stand still and 99 % survives, "
           "because roundings up and down cancel; at 1e-6 3 % survives.",
       .symptom = "The tuned model works with its adapter beside it, and behaves like its base, or "
                  "a little worse, once it is merged. The loss differs in the third digit.",
       .truth =
           "A short or gentle fine-tuning lives in changes that the base's type cannot hold. While "
           "the adapter stays beside the weight, its output is added to W x, whose rounding errors "
           "are small next to the outputs and average out; merged, each element is rounded alone "
           "and for good. Rounding the product to bf16 first, as PEFT's safe_merge does, rounds "
           "twice.",
       .fix = "Merge in f32 and save f32, or leave the adapter beside the weight. If it must be "
              "bf16, print the share that survived, as `faultline merge` does.",
       .sources =
           {"peft issue 1388 (2024-01-23): the loss is 2.11778 with the adapter in bf16 and 2.12142 "
            "after merge_and_unload. https://github.com/huggingface/peft/issues/1388",
            "torchtune issue 1101 (2024-06-21, comment): a discrepancy that is expected in bf16; "
            "merging in f32 is considered. https://github.com/meta-pytorch/torchtune/issues/1101",
            "MiniCPM-V issue 502 (2024-08-23, comment): a merged model saved in bf16 gives wrong "
            "results, in f16 right ones. https://github.com/OpenBMB/MiniCPM-V/issues/502"},
       .look_alikes =
           "A merge with the wrong scale, twice or transposed changes outputs more, in f32 as well. "
           "An adapter that learned nothing has a product of 0. Refuted when the merged weight has "
           "more than 8 significant bits, or nearly all elements that the product changes moved.",
       .exercise = "A weight is 0.02 in bf16. What is the smallest product, added to it, that "
                   "changes it?",
       .answer = "0.02 lies between 2^-6 and 2^-5, where neighbours are 2^-13 = 1.22e-4 apart. It "
                 "needs more than half: 6.1e-5."});

  const char* reason =
      "88.4 % is the mean for products N(0, 1e-5) and for B A of rank 64 alike; one draw of 65,536 "
      "elements of B A, which share 256 + 256 rows of factors, spreads by 0.16 %";
  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::LoraMergeSeam>(&merged_in_bf16);
      })
      .run(&merge_small_product)
      .remedy(
          [](Context& context) { return context.seams.replace<nn::LoraMergeSeam>(&with_the_rest); })
      .expect_within("unchanged", 0.884, 0.006, reason)
      .expect_within("survived", 0.28, 0.02, "some 7,600 elements that move carry it, in steps")
      .caught_by("merge.product")
      .in_training({.steps = 200, .needs = {{"lora", "r=4,alpha=8"}}});
}

}  // namespace faultline::lab
