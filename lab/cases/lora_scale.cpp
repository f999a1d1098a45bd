#include <cmath>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/lora.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the adapter's configuration says use_rslora, and the program that serves it does
// not know that key.
double by_rank_always(const nn::LoraShape& shape) {
  return shape.alpha / static_cast<double>(shape.rank);
}
// page: end

// What people do about such a program: they write alpha * sqrt(r) into the adapter's configuration.
double by_rank_of_larger_alpha(const nn::LoraShape& shape) {
  nn::LoraShape written = shape;
  if (shape.scaling == nn::LoraScaling::by_root_of_rank) {
    written.alpha *= std::sqrt(static_cast<double>(shape.rank));
  }
  return by_rank_always(written);
}

// An adapter of rank 64 and alpha 16, trained with alpha / sqrt(r), at work on one layer.
void serve_adapter(const RunOptions&, Metrics& metrics) {
  const NoGrad off;
  const nn::DropoutKey key(1);
  nn::Linear layer(2, 2, nn::Bias::no);
  add_lora(layer, "tuned", {.rank = 64, .alpha = 16, .scaling = nn::LoraScaling::by_root_of_rank},
           key, 1);
  nn::LoraAdapter& adapter = *layer.adapters().front();
  for (Parameter* factor : adapter.parameters()) fill_(factor->value(), 0x1p-4);
  metrics.measure("scale", adapter.scale());
  // The layer's weight is 0, and each of the 64 ranks gives 2^-4 * 2^-4 of the first input.
  metrics.measure("output", layer(tensor({1.0F, 0.0F}, {1, 2})).to_vector<double>()[0]);

  Curve scales{"scale of alpha 16 by rank", {}, {}};
  for (int64_t rank = 1; rank <= 64; rank *= 2) {
    scales.x.push_back(static_cast<double>(rank));
    scales.y.push_back(Context::current().seams.call<nn::LoraScaleSeam>(
        nn::LoraShape{rank, 16, nn::LoraScaling::by_root_of_rank}));
  }
  metrics.add(scales);
}

}  // namespace

FAULT(lora_scale) {
  Fault& fault = lab.fault(
      {.id = "lora.scale",
       .title = "An adapter acts with another scale than it was trained with",
       .domain = "adapters",
       .mechanism =
           "The output of an adapter is s B A x, with s = alpha / r (LoRA) or alpha / sqrt(r) "
           "(rank-stabilised LoRA, rsLoRA). s is no tensor in the file: only r, alpha and the flag "
           "use_rslora are, and each program computes s anew. One that does not know the flag "
           "divides by r. With r = 64 and alpha = 16 that is 16 / 64 = 0.25 where 16 / sqrt(64) = 2 "
           "is due: every adapter acts 8 times too weakly, sqrt(r) times in general. One that does "
           "not divide at all gives 16.",
       .symptom = "The adapter loads without a word and the model behaves nearly as its base does. "
                  "Or, too strong, it repeats itself and babbles. Training, where the scale was "
                  "right, looked well.",
       .truth =
           "The weights are all right; the recipe beside them was read in part. A rank or alpha "
           "of a single layer (rank_pattern, alpha_pattern) is lost in the same way. At rank 1 "
           "both rules agree, so a test of rank 1 shows nothing.",
       .fix = "Read use_rslora and the patterns, refuse keys that you do not know, and compare the "
              "logits with those of the trainer on one prompt.",
       .sources =
           {"TensorRT-LLM issue 1668 (2024-05-24): alpha is scaled wrongly for rsLoRA, generations "
            "are very bad. https://github.com/NVIDIA/TensorRT-LLM/issues/1668",
            "sglang issue 40835 (2026-09-23): use_rslora is ignored, the update is sqrt(r) times "
            "too weak, 8 times at r = 64. https://github.com/sgl-project/sglang/issues/40835",
            "peft issue 2733 (2025-08-08): set_scale assumes that an adapter is no rsLoRA one. "
            "https://github.com/huggingface/peft/issues/2733",
            "Kalajdzievski, \"A rank stabilization scaling factor for fine-tuning with LoRA\" "
            "(2023). https://arxiv.org/abs/2312.03732"},
       .look_alikes =
           "An adapter that was not loaded at all, whose outputs are exactly the base's. One that "
           "learned little, which acts as little in the program that trained it. Refuted when "
           "the factor in use equals alpha / r or alpha / sqrt(r), as the configuration says.",
       .exercise = "An adapter of rank 16 was trained with alpha / sqrt(r) and is served with "
                   "alpha / r. Which alpha in its configuration mends that?",
       .answer = "sqrt(16) = 4 times the old one: 4 alpha / 16 = alpha / 4 = alpha / sqrt(16)."});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::LoraScaleSeam>(&by_rank_always);
      })
      .run(&serve_adapter)
      .remedy([](Context& context) {
        return context.seams.replace<nn::LoraScaleSeam>(&by_rank_of_larger_alpha);
      })
      .expect("scale", 0.25)
      .expect("output", 0.0625)
      .caught_by("adapter.scale")
      .in_training({.steps = 200, .needs = {{"lora", "r=4,alpha=8,rslora=true"}}});
}

}  // namespace faultline::lab
