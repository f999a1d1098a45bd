#include "diagnose/shown_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "diagnose/values.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kElementsRead = int64_t{1} << 17;
constexpr double kRoundsToZero = 1e-37;  // f32 has no normal number below 1.2e-38

// The distance from 1 to the next number of the dtype.
double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    case DType::f64:
      return 0x1p-52;
    default:
      return 0x1p-23;
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
  return std::strcmp(launch.label.op, "attention") == 0;
}

ShownAttention::ShownAttention(const Launch& launch)
    : scores_(launch.args.inputs[0]),
      weights_(launch.args.inputs[1]),
      mask_(launch.args.attributes.as<MaskAttributes>()),
      valid_(sample(launch.args.inputs[2])),
      documents_(sample(launch.args.inputs[3])) {}

const char* ShownAttention::forbids(int64_t batch, int64_t query, int64_t key) const {
  const auto at = [&](int64_t k) { return static_cast<size_t>(batch * keys() + k); };
  const int64_t position = mask_.query_offset + query;
  if (mask_.causal && key > position) return "it lies in the future";
  if (!valid_.empty() && valid_[at(key)] == 0) return "it is padding";
  if (!documents_.empty() && documents_[at(key)] != documents_[at(position)]) {
    return "it belongs to another document";
  }
  return "";
}

AttentionRow ShownAttention::row(int64_t number) const {
  const Shape& shape = weights_.shape;
  AttentionRow row;
  row.batch = number / (shape[1] * shape[2]);
  row.head = number / shape[2] % shape[1];
  row.query = number % shape[2];
  row.scores = read_values(scores_, number * keys(), keys());
  for (double& score : row.scores) score *= mask_.scale;
  row.weights = read_values(weights_, number * keys(), keys());
  for (int64_t k = 0; k < keys(); ++k) row.forbids.push_back(forbids(row.batch, row.query, k));
  return row;
}

std::vector<int64_t> ShownAttention::rows_to_read(int64_t turn) const {
  const int64_t rows = weights_.shape[0] * weights_.shape[1] * weights_.shape[2];
  const int64_t stride = std::max<int64_t>(1, rows * keys() / kElementsRead);
  std::vector<int64_t> numbers;
  for (int64_t row = turn % stride; row < rows; row += stride) numbers.push_back(row);
  return numbers;
}

double ShownAttention::weight_bound(const AttentionRow& row) const {
  double largest = 0;
  for (const double score : row.scores) largest = std::max(largest, std::abs(score));
  const double epsilon = std::max(epsilon_of(scores_.dtype), epsilon_of(weights_.dtype));
  return 2 * epsilon * (2 * largest + 2 + static_cast<double>(keys()));
}

double ShownAttention::sum_bound() const {
  const double keys_in_sum = static_cast<double>(keys()) * epsilon_of(DType::f32);
  return 2 * (epsilon_of(weights_.dtype) + keys_in_sum);
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
                  double relative_bound) {
  for (size_t k = 0; k < weights.size(); ++k) {
    if (!(std::abs(weights[k] - exact[k]) <= relative_bound * exact[k] + kRoundsToZero)) {
      return false;
    }
  }
  return true;
}

}  // namespace faultline::diagnose
