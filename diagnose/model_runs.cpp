#include "diagnose/model_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/error.h"
#include "core/rng.h"
#include "diagnose/values.h"

namespace faultline::diagnose {

CheckedModel::CheckedModel(nn::LanguageModel& model)
    : model_(model), evaluation_(model), shape_(model.model_shape()) {
  constexpr int64_t kFewest = 8;
  constexpr int64_t kMost = 24;
  require(shape_.seq_len >= kFewest && shape_.vocab_size > 1,
          "attention checks: need a model of at least {} positions and 2 tokens, got {} and {}",
          kFewest, shape_.seq_len, shape_.vocab_size);
  positions_ = std::min(shape_.seq_len, kMost);
}

std::vector<int32_t> CheckedModel::text(int64_t length, uint64_t number) const {
  const RandomSequence random(1, number);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>(
        random.below(static_cast<uint64_t>(shape_.vocab_size), static_cast<uint64_t>(i))));
  }
  return ids;
}

std::vector<int32_t> CheckedModel::changed(std::vector<int32_t> text, int64_t position) const {
  int32_t& id = text[static_cast<size_t>(position)];
  id = static_cast<int32_t>((id + shape_.vocab_size / 2) % shape_.vocab_size);
  return text;
}

Tensor CheckedModel::logits(const std::vector<std::vector<int32_t>>& rows, const nn::Mask& mask) {
  std::vector<int32_t> tokens;
  for (const auto& row : rows) tokens.insert(tokens.end(), row.begin(), row.end());
  const Shape shape{std::ssize(rows), std::ssize(rows.at(0))};
  return model_.forward({.tokens_BT = tensor(tokens, shape), .mask = mask});
}

double CheckedModel::rounding(const Tensor& logits) const {
  double largest = 0;
  for (const double x : logits.to_vector<double>()) largest = std::max(largest, std::abs(x));
  const auto sums = static_cast<double>(8 * shape_.num_layers + 2);
  const double terms = std::sqrt(static_cast<double>(4 * shape_.hidden_size));
  return 8 * sums * terms * 0x1p-24 * largest;
}

Tensor positions_of(const Tensor& logits_BTV, int64_t b, int64_t begin, int64_t end) {
  const Tensor row = slice(logits_BTV, 0, b, b + 1);
  return logits_BTV.rank() == 2 ? row : slice(row, 1, begin, end);
}

bool is_causal_tensor(const nn::Mask& mask, int64_t positions) {
  const Tensor& given = mask.keep.defined() ? mask.keep : mask.bias;
  if (!given.defined()) return false;
  const double lowest = mask.keep.defined() ? 0 : -largest_finite(given.dtype());
  const double shown = mask.keep.defined() ? 1 : 0;
  const auto values = given.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    const bool later = n % positions > n / positions % positions;
    if (later ? !(values[i] <= lowest) : values[i] != shown) return false;
  }
  return true;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto left = a.to_vector<double>();
  const auto right = b.to_vector<double>();
  if (left.size() != right.size()) return kNan;
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double apart = std::abs(left[i] - right[i]);
    if (std::isnan(apart)) return kNan;
    largest = std::max(largest, apart);
  }
  return largest;
}

}  // namespace faultline::diagnose
