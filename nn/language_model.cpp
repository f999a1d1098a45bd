#include "nn/language_model.h"

#include "autograd/functional.h"

namespace faultline::nn {

int64_t LanguageModel::parameter_count() {
  int64_t count = 0;
  for (const Parameter* parameter : parameters()) count += parameter->value().numel();
  return count;
}

ModelInput within_window(ModelInput input, int64_t window) {
  if (input.mask.window == 0) input.mask.window = window;
  return input;
}

Tensor TokenLossSeam::standard(const Tensor& logits_BTV, const Tensor& labels_BT) {
  const Tensor logits_NV = reshape(logits_BTV, {-1, logits_BTV.shape()[-1]});
  return cross_entropy_rows(logits_NV, reshape(labels_BT, {-1}));
}

Tensor language_model_loss(const Tensor& logits_BTV, const Tensor& labels_BT) {
  return sum(Context::current().seams.call<TokenLossSeam>(logits_BTV, labels_BT));
}

}  // namespace faultline::nn
