#include <cmath>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/lora.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: it takes the weight for one of GPT-2's Conv1D, which is stored [in, out], and
// turns the product round. A layer that is not square would end in an error here.
Tensor merged_as_conv1d(const Tensor& weight, const Tensor& product) {
  return nn::LoraMergeSeam::standard(weight, transpose(product, 0, 1));
}
// page: end

// What people do: fan_in_fan_out is a flag, and with the other value the product is turned round
// once more.
Tensor with_the_flag_set(const Tensor& weight, const Tensor& product) {
  return merged_as_conv1d(weight, transpose(product, 0, 1));
}

double norm_of_added(const Tensor& x) {
  double squares = 0;
  for (const double value : x.to_vector<double>()) squares += value * value;
  return std::sqrt(squares);
}

// A square layer of whole numbers before and after a merge.
void merge_square_layer(const RunOptions&, Metrics& metrics) {
  constexpr int64_t kWidth = 4;
  const NoGrad off;
  const nn::DropoutKey key(1);
  nn::Linear layer(kWidth, kWidth, nn::Bias::no);
  add_lora(layer, "tuned", {.rank = 1, .alpha = 1}, key, 1);
  nn::LoraAdapter& adapter = *layer.adapters().front();
  copy_(adapter.parameters()[0]->value(), tensor({1.0F, 10.0F, 100.0F, 1000.0F}, {1, kWidth}));
  copy_(adapter.parameters()[1]->value(), tensor({1.0F, 2.0F, 3.0F, 4.0F}, {kWidth, 1}));
  const Tensor x = tensor({1.0F, 0.0F, 0.0F, 0.0F}, {1, kWidth});
  const Tensor beside = layer(x);
  nn::merge_adapters(layer, nn::Originals::drop);
  const Tensor merged = layer(x);

  metrics.measure("second output beside", beside.to_vector<double>()[1]);
  metrics.measure("second output merged", merged.to_vector<double>()[1]);
  metrics.measure("norm of what was added", norm_of_added(layer.weight().value()));
  std::vector<double> added = layer.weight().value().to_vector<double>();
  for (double& value : added) value = std::log10(value);
  metrics.add(
      Grid{"what was added to the weight (log10)", kWidth, kWidth, added, {"output"}, {"input"}});
}

}  // namespace

FAULT(lora_fan_in_out) {
  Fault& fault = lab.fault(
      {.id = "lora.fan-in-out",
       .title = "An adapter is merged transposed",
       .domain = "adapters",
       .mechanism =
           "A linear layer stores its weight [out, in]; GPT-2's Conv1D stores it [in, out]. The "
           "product B A is [out, in], so a merge into Conv1D needs its transpose, which PEFT calls "
           "fan_in_fan_out. With the wrong value of that flag a layer of 32 x 96 ends in a shape "
           "error, and a square one, such as attention's c_proj, takes (B A)^T in silence. With "
           "A = (1, 10, 100, 1000) and B = (1, 2, 3, 4) the second output for the first unit "
           "vector is 2 beside the weight and 10 after the merge. Both products have the same norm.",
       .symptom =
           "The tuned model is good until it is merged. Then it is worse than its base, or a "
           "little off where few layers are square. Nothing fails.",
       .truth =
           "The transpose has the same shape, norm, rank and singular values, so no summary of the "
           "weight shows it; only an output does. Loaders that turn a checkpoint round while they "
           "read it have the same choice at another place.",
       .fix = "Let the layer say how its weight is stored, and compare the logits of one prompt "
              "before and after each merge. Test with layers that are not square, and with one "
              "that is, at random values.",
       .sources =
           {"peft issue 3531 (2026-08-10): DoRA's unmerge forgets the transpose: a shape error in "
            "c_attn, silent corruption in the square c_proj. "
            "https://github.com/huggingface/peft/issues/3531",
            "lorax pull request 106 (2023-12-06): merging into GPT-2 likely needs the transpose, "
            "because PEFT takes Conv1D for a transposed linear layer. "
            "https://github.com/predibase/lorax/pull/106",
            "aprender pull request 2138 (2026-06-19): every merge of an adapter in PEFT's layout "
            "added a scrambled product. https://github.com/paiml/aprender/pull/2138"},
       .look_alikes =
           "A merge of another adapter, or into another layer: then what was added is no transpose "
           "of the product. A product that is symmetric cannot show the fault. Refuted when what "
           "was added is the product itself.",
       .exercise = "A is [2, 3] and B is [3, 2]. For which of such pairs does this fault change "
                   "nothing?",
       .answer = "For those with B A = (B A)^T, for example B = A^T. Tests that fill both with one "
                 "constant are among them: they pass, and prove nothing."});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::LoraMergeSeam>(&merged_as_conv1d);
      })
      .run(&merge_square_layer)
      .remedy([](Context& context) {
        return context.seams.replace<nn::LoraMergeSeam>(&with_the_flag_set);
      })
      .expect("second output merged", 10)
      .caught_by("merge.product")
      // The square layers of GPT-2.
      .in_training({.steps = 200, .needs = {{"lora", "r=4,alpha=8,regex=.*attn\\.c_proj"}}});
}

}  // namespace faultline::lab
