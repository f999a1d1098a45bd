#pragma once

#include <cstdint>
#include <vector>

#include "nn/language_model.h"

// What the checks of a model share: texts that are always the same, its logits, and how far two of
// its passes may lie apart.
namespace faultline::diagnose {

// The state in which a model is checked; it gets back what it had.
class CheckedModel {
 public:
  explicit CheckedModel(nn::LanguageModel& model);

  // Positions of the texts. Throws InvalidArgument for a model of fewer than 8.
  int64_t positions() const { return positions_; }
  const nn::ModelShape& shape() const { return shape_; }
  // `length` ids; another `number`, other ids.
  std::vector<int32_t> text(int64_t length, uint64_t number) const;
  // text() with the token at `position` replaced by another one.
  std::vector<int32_t> changed(std::vector<int32_t> text, int64_t position) const;

  // Logits [B, T, V] of rows of one length.
  Tensor logits(const std::vector<std::vector<int32_t>>& rows, const nn::Mask& mask = {});
  Tensor forward(const nn::ModelInput& input) { return model_.forward(input); }
  nn::LanguageModel& model() { return model_; }

  // How far two passes over one text may lie apart whose sums are made in another order. A sum of n
  // terms is off by about sqrt(n) 2^-24 of its terms (Higham and Mary, "A new approach to
  // probabilistic rounding error analysis", 2019); eight times that, for each of the 8 sums of a
  // layer, one behind the other, relative to the largest logit.
  double rounding(const Tensor& logits) const;

 private:
  nn::LanguageModel& model_;
  nn::EvaluationMode evaluation_;
  NoGrad off_;
  nn::ModelShape shape_;
  int64_t positions_ = 0;
};

constexpr const char* kRoundingReason = "64 L + 16 sums in another order, sqrt(n) 2^-24 each";
constexpr const char* kSameBits = "the same arithmetic";

// Positions [begin, end) of row b of [B, T, V], or of [B, V].
Tensor positions_of(const Tensor& logits_BTV, int64_t b, int64_t begin, int64_t end);
// Whether a mask is a tensor, keep or bias, that says no more than `causal` does.
bool is_causal_tensor(const nn::Mask& mask, int64_t positions);
// The largest |a - b|; NaN where either is NaN or the sizes differ.
double largest_difference(const Tensor& a, const Tensor& b);

}  // namespace faultline::diagnose
