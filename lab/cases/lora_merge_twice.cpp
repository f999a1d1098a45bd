#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/lora.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: merging adds to the weight and notes it nowhere. The user merges, and saving the
// model merges once more.
Tensor merged_again(const Tensor& weight, const Tensor& product) {
  const Tensor by_hand = nn::LoraMergeSeam::standard(weight, product);
  return nn::LoraMergeSeam::standard(by_hand, product);  // while saving
}
// page: end

// What people do about a model that is merged twice: unmerge it once, by subtraction.
Tensor unmerged_once(const Tensor& weight, const Tensor& product) {
  return merged_again(weight, product) - product;
}

// A layer of whole numbers, whose sums are exact, before and after a merge.
void merge_one_layer(const RunOptions&, Metrics& metrics) {
  const NoGrad off;
  const nn::DropoutKey key(1);
  nn::Linear layer(2, 3, nn::Bias::no);
  fill_(layer.weight().value(), 1);
  add_lora(layer, "tuned", {.rank = 1, .alpha = 1}, key, 1);
  nn::LoraAdapter& adapter = *layer.adapters().front();
  copy_(adapter.parameters()[0]->value(), tensor({1.0F, 2.0F}, {1, 2}));
  copy_(adapter.parameters()[1]->value(), tensor({3.0F, 5.0F, 7.0F}, {3, 1}));
  const Tensor x = ones({1, 2});
  const Tensor beside = layer(x);
  const nn::Merge merge = nn::merge_adapters(layer, nn::Originals::drop);
  const Tensor merged = layer(x);

  metrics.measure("times added", merge.layers.front().survived);
  metrics.measure("first output beside", beside.to_vector<double>()[0]);
  metrics.measure("first output merged", merged.to_vector<double>()[0]);
  metrics.add(Curve{"merged output by output beside", beside.to_vector<double>(),
                    merged.to_vector<double>()});
}

}  // namespace

FAULT(lora_merge_twice) {
  Fault& fault = lab.fault(
      {.id = "lora.merge-twice",
       .title = "An adapter is merged into its weight twice",
       .domain = "adapters",
       .mechanism =
           "Merging adds the product s B A of an adapter to the weight: W becomes W + s B A. It is "
           "an addition, not an assignment, so a second call makes W + 2 s B A, the model of an "
           "adapter with twice the alpha. In the case W is 1 everywhere, A = (1, 2) and "
           "B = (3, 5, 7): the first output for x = (1, 1) is 2 + 3 * 3 = 11 beside the weight, and "
           "2 + 2 * 9 = 20 after the second merge. Its twin is a layer that is merged and whose "
           "adapter still acts: 2 + 9 + 9.",
       .symptom = "The tuned model is good until it is saved or merged; then it overdoes what it "
                  "learned, repeats itself, or is worse than its base.",
       .truth = "Merges happen unasked: when a model is saved, unloaded, or put into evaluation "
                "mode. Whether one has happened must be noted where the weight is. Shapes, dtypes "
                "and norms of the file are all plausible.",
       .fix =
           "Note in the layer that it is merged, and refuse the second merge. Compare the logits "
           "of one prompt before and after.",
       .sources =
           {"peft pull request 1355 (2024-01-12): merging is made idempotent; before it each call "
            "added the delta again, and calls are often implicit. "
            "https://github.com/huggingface/peft/pull/1355",
            "candle-lora issue 26 (2025-09-20): an embedding does not ask whether it is merged, so "
            "its adapter would act twice. https://github.com/EricLBuehler/candle-lora/issues/26"},
       .look_alikes =
           "An alpha or scale that is twice what it should be: then the output is wrong before the "
           "merge as well. A merge in bf16, whose error is not along the product. Refuted when "
           "the weight changed by s B A once.",
       .exercise = "A model was merged twice and only its files are left: W + 2 s B A, A, B and s. "
                   "Is the base lost?",
       .answer =
           "No. Subtract 2 s B A; in floating point each element is then off by a few "
           "roundings of the larger numbers, about an ulp, so it is not the base bit by bit."});

  fault.only_variant()
      .wrong(
          [](Context& context) { return context.seams.replace<nn::LoraMergeSeam>(&merged_again); })
      .run(&merge_one_layer)
      .remedy(
          [](Context& context) { return context.seams.replace<nn::LoraMergeSeam>(&unmerged_once); })
      .expect("times added", 2)
      .expect("first output merged", 20)
      .caught_by("merge.product")
      .in_training({.steps = 200, .needs = {{"lora", "r=4,alpha=8"}}});
}

}  // namespace faultline::lab
