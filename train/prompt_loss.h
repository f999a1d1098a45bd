#pragma once

#include <span>

#include "nn/language_model.h"

namespace faultline::train {

// The cache that a pass whose gradients are wanted gives its keys and values to.
struct GradientCacheSeam {
  static constexpr const char* name = "cache while gradients are on";
  // None: there is nothing to generate, and a segment that runs again would append again.
  using Signature = nn::KvCache*();
  static nn::KvCache* standard() { return nullptr; }
};

// A pass of prompt_loss() over such a cache is about to run.
struct GradientCacheEvent {
  int64_t first;  // slots that the cache holds already
};

struct PromptLoss {
  double loss = 0;           // nats per token, of all but the first
  double gradient_norm = 0;  // of that, over all parameters that are trained
};

// How surprising a text is to a model, and how much training on it would move the model. Memory is
// that of a forward pass: the backward pass computes it anew. Clears the model's gradients. Throws
// InvalidArgument for fewer than two tokens, or more than the model takes.
PromptLoss prompt_loss(nn::LanguageModel& model, std::span<const int32_t> tokens);

}  // namespace faultline::train
