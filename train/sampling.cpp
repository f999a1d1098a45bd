#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace faultline::train {
namespace {

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Puts the `count` likeliest first, in order.
void sort_likeliest(std::span<const float> logits, std::vector<int32_t>& ids, size_t count) {
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), likelier);
}

// How many of the first weights reach the share `top_p` of the total; 0 when all together do not.
size_t nucleus(std::span<const double> weights, double total, double top_p) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= top_p * total) return i + 1;
  }
  return 0;
}

}  // namespace

void SamplingOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0,
          "sampling: temperature must be finite and not negative, got {}", temperature);
  require(top_k >= 0, "sampling: top_k must not be negative, got {}", top_k);
  require(top_p >= 0 && top_p <= 1, "sampling: top_p must be in [0, 1], got {}", top_p);
}

Candidates candidates_of(std::span<const float> logits, const SamplingOptions& options) {
  const double highest = logits[static_cast<size_t>(likeliest(logits))];
  const auto weight = [&](int32_t id) {
    const double below = static_cast<double>(logits[static_cast<size_t>(id)]) - highest;
    return std::exp(below / options.temperature);
  };
  const auto weights_of = [&](std::span<const int32_t> ids) {
    std::vector<double> weights;
    weights.reserve(ids.size());
    for (const int32_t id : ids) weights.push_back(weight(id));
    return weights;
  };
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < ids.size()) {
    sort_likeliest(logits, ids, static_cast<size_t>(options.top_k));
    ids.resize(static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights = weights_of(ids);
  if (options.top_p == 1) return {std::move(ids), std::move(weights)};

  // Few ids mostly make up the share: the others need no order.
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t sorted = 64;; sorted *= 8) {
    const size_t count = std::min(sorted, ids.size());
    sort_likeliest(logits, ids, count);
    weights = weights_of(std::span(ids).first(count));
    size_t kept = nucleus(weights, total, options.top_p);
    if (kept == 0 && count == ids.size()) kept = count;  // the total was rounded up
    if (kept == 0) continue;
    ids.resize(kept);
    weights.resize(kept);
    return {std::move(ids), std::move(weights)};
  }
}

int32_t choose(std::span<const float> logits, const SamplingOptions& options, int64_t step) {
  require(!logits.empty(), "sampling: there are no logits");
  if (options.temperature == 0) return likeliest(logits);
  const Candidates candidates = candidates_of(logits, options);
  const double total = std::accumulate(candidates.weights.begin(), candidates.weights.end(), 0.0);
  const RandomSequence random(options.seed, stream_of("generate"));
  const double wanted = random.uniform(static_cast<uint64_t>(step)) * total;
  double sum = 0;
  for (size_t i = 0; i < candidates.ids.size(); ++i) {
    sum += candidates.weights[i];
    if (wanted < sum) return candidates.ids[i];
  }
  return candidates.ids.back();
}

}  // namespace faultline::train
