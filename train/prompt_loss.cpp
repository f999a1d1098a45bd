#include "train/prompt_loss.h"

#include <cmath>
#include <vector>

#include "autograd/functional.h"
#include "nn/checkpoint.h"

namespace faultline::train {
namespace {

double norm_of_gradients(nn::LanguageModel& model) {
  const NoGrad off;
  double squares = 0;
  for (const Parameter* parameter : model.parameters()) {
    const Tensor gradient = parameter->gradient();
    if (!gradient.defined()) continue;
    const Tensor exact = cast(gradient, DType::f64);
    squares += sum(exact * exact).item<double>();
  }
  return std::sqrt(squares);
}

}  // namespace

PromptLoss prompt_loss(nn::LanguageModel& model, std::span<const int32_t> tokens) {
  require(tokens.size() >= 2, "prompt loss: needs at least two tokens, got {}", tokens.size());
  const Scoped<bool> on(Context::current().gradients, true);
  const auto T = static_cast<int64_t>(tokens.size()) - 1;
  const Tensor inputs_BT = tensor(tokens.first(static_cast<size_t>(T)), {1, T});
  const Tensor labels_BT = tensor(tokens.subspan(1), {1, T});
  model.clear_gradients();
  const Tensor loss = nn::checkpoint([&] {
    nn::ModelInput input{.tokens_BT = inputs_BT, .mask = {}};
    input.cache = Context::current().seams.call<GradientCacheSeam>();
    if (input.cache != nullptr) {
      input.mask.query_offset = input.cache->length();
      Context::current().events.emit(GradientCacheEvent{input.mask.query_offset});
      input.mask.top_left = true;  // also where the cache gives slots that are not filled
    }
    return nn::language_model_loss(model.forward(input), labels_BT);
  });
  PromptLoss result{.loss = loss.item<double>() / static_cast<double>(T)};
  if (requires_grad(loss)) backward(loss);
  result.gradient_norm = norm_of_gradients(model) / static_cast<double>(T);
  model.clear_gradients();
  return result;
}

}  // namespace faultline::train
