#include "diagnose/shown_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kElementsRead = int64_t{1} << 17;

// Up to here a number of the dtype may become 0. f16 keeps its subnormal numbers, the smallest is
// 2^-24; of the others kernels may drop them, and f32 and bf16 have none that is normal below
// 2^-126.
double loses_to_zero(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-25;
    case DType::f64:
      return 0x1p-1022;
    default:
      return 0x1p-126;
  }
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

bool AttentionRow::finite() const { return all_finite(scores) && all_finite(weights); }

std::string AttentionRow::place() const {
  return fmt::format("batch {}, head {}, query {}", batch, head, query);
}

bool ShownAttention::is_shown_by(const Launch& launch) {
  return std::string_view(launch.label.op) == "attention";
}

bool ShownAttention::is_masked_softmax(const Launch& launch) {
  return std::string_view(launch.label.op) == "masked_softmax" &&
         launch.label.phase == Phase::forward && launch.args.outputs[0].shape.rank() == 4;
}

ShownAttention::ShownAttention(const Launch& launch)
    : scores_(launch.args.inputs[0]),
      weights_(is_shown_by(launch) ? launch.args.inputs[1] : launch.args.outputs[0]),
      mask_(launch.args.attributes.as<MaskAttributes>()),
      valid_(sample(launch.args.inputs[is_shown_by(launch) ? 2 : 1])),
      documents_(sample(launch.args.inputs[is_shown_by(launch) ? 3 : 2])) {
  if (is_shown_by(launch)) keep_ = launch.args.inputs[4];
}

bool ShownAttention::causality_allows(int64_t query, int64_t key) const {
  return !mask_.causal || key < mask_.prefix || key <= mask_.query_offset + query;
}

bool ShownAttention::window_allows(int64_t query, int64_t key) const {
  const int64_t distance = std::abs(mask_.query_offset + query - key);
  return mask_.window == 0 || key < std::max(mask_.prefix, mask_.sinks) || distance < mask_.window;
}

bool ShownAttention::is_text(int64_t batch, int64_t key) const {
  return valid_.empty() || valid_[static_cast<size_t>(batch * keys() + key)] != 0;
}

bool ShownAttention::in_one_document(int64_t batch, int64_t query, int64_t key) const {
  const auto document = [&](int64_t k) {
    return documents_[static_cast<size_t>(batch * keys() + k)];
  };
  return documents_.empty() || document(key) == document(mask_.query_offset + query);
}

bool ShownAttention::allows(int64_t batch, int64_t query, int64_t key) const {
  return *forbids(batch, query, key) == 0;
}

const char* ShownAttention::forbids(int64_t batch, int64_t query, int64_t key) const {
  if (!causality_allows(query, key)) return "it lies in the future";
  if (!window_allows(query, key)) return "it lies outside of the window";
  if (!is_text(batch, key)) return "it is padding";
  if (!in_one_document(batch, query, key)) return "it belongs to another document";
  return "";
}

AttentionRow ShownAttention::row(int64_t number) const {
  AttentionRow row;
  read(number, row);
  return row;
}

void ShownAttention::read(int64_t number, AttentionRow& row) const {
  read_weights(number, row);
  read_values(scores_, number * keys(), keys(), row.scores);
  for (double& score : row.scores) score *= mask_.scale;
  row.forbids.resize(row.weights.size());
  for (size_t k = 0; k < row.forbids.size(); ++k) {
    row.forbids[k] = forbids(row.batch, row.query, static_cast<int64_t>(k));
  }
  if (!keep_.defined()) return;
  const auto plane = [](int64_t i, int64_t size) { return size == 1 ? 0 : i; };
  const int64_t first =
      (plane(row.batch, keep_.shape[0]) * keep_.shape[1] + plane(row.head, keep_.shape[1])) *
      queries();
  std::vector<double> keep;
  read_values(keep_, (first + row.query) * keys(), keys(), keep);
  for (size_t k = 0; k < keep.size(); ++k) {
    if (keep[k] == 0 && row.allowed(k)) row.forbids[k] = "the mask's tensor hides it";
  }
}

void ShownAttention::read_weights(int64_t number, AttentionRow& row) const {
  const Shape& shape = weights_.shape;
  row.batch = number / (shape[1] * shape[2]);
  row.head = number / shape[2] % shape[1];
  row.query = number % shape[2];
  read_values(weights_, number * keys(), keys(), row.weights);
}

std::vector<int64_t> ShownAttention::rows_to_read(int64_t turn) const {
  const int64_t rows = weights_.shape[0] * weights_.shape[1] * weights_.shape[2];
  const int64_t stride = std::max<int64_t>(1, rows * keys() / kElementsRead);
  std::vector<int64_t> numbers;
  for (int64_t row = turn % stride; row < rows; row += stride) numbers.push_back(row);
  return numbers;
}

WeightBound ShownAttention::weight_bound(const AttentionRow& row) const {
  double largest = 0;
  for (const double score : row.scores) largest = std::max(largest, std::abs(score));
  const double u = std::max(unit_roundoff(scores_.dtype), unit_roundoff(weights_.dtype));
  const double sum = static_cast<double>(keys()) * unit_roundoff(DType::f32);
  return {2 * (u * (4 * largest + 8) + sum), 2 * loses_to_zero(weights_.dtype)};
}

double ShownAttention::sum_bound() const {
  const auto terms = static_cast<double>(keys());
  return 2 * (unit_roundoff(weights_.dtype) + terms * unit_roundoff(DType::f32) +
              terms * loses_to_zero(weights_.dtype));
}

double ShownAttention::safe_score() const {
  const double range =
      std::min(largest_finite(weights_.dtype), 0.5 / loses_to_zero(weights_.dtype));
  return std::log(range) - std::log(static_cast<double>(keys()));
}

std::vector<double> exact_softmax(const std::vector<double>& exponents) {
  std::vector<double> weights(exponents.size(), 0.0);
  const double largest = *std::max_element(exponents.begin(), exponents.end());
  if (largest == -INFINITY) return weights;
  double total = 0;
  for (size_t k = 0; k < exponents.size(); ++k) {
    weights[k] = std::exp(exponents[k] - largest);
    total += weights[k];
  }
  for (double& weight : weights) weight /= total;
  return weights;
}

bool same_weights(const std::vector<double>& weights, const std::vector<double>& exact,
                  const WeightBound& bound) {
  for (size_t k = 0; k < weights.size(); ++k) {
    const double allowed = bound.relative * exact[k] + bound.absolute;
    if (!(std::abs(weights[k] - exact[k]) <= allowed)) return false;
  }
  return true;
}

}  // namespace faultline::diagnose
