#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "nn/language_model.h"

namespace faultline::train {

struct SamplingOptions {
  uint64_t seed = 1;
  double temperature = 1;  // 0: the likeliest
  int64_t top_k = 0;       // 0: all

  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

// Chooses the byte that follows a text. Choice i is made with number i of a random sequence, so a
// seed gives one text.
class NextByte {
 public:
  // The model must be in evaluation mode.
  NextByte(nn::LanguageModel& model, const SamplingOptions& options);
  // `ids` is not empty; the model sees as many of its last ones as it knows positions. Throws
  // InvalidArgument when the logits are not finite.
  int32_t operator()(const std::vector<int32_t>& ids);

 private:
  std::vector<double> logits(const std::vector<int32_t>& ids);
  int32_t choose(const std::vector<double>& logits);

  nn::LanguageModel& model_;
  SamplingOptions options_;
  RandomSequence random_;
  uint64_t drawn_ = 0;
};

}  // namespace faultline::train
