#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/functional.h"
#include "core/context.h"
#include "data/tokenizer.h"

namespace faultline::train {

void SamplingOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0,
          "sampling: temperature must be finite and not negative, got {}", temperature);
  require(top_k >= 0, "sampling: top_k must not be negative, got {}", top_k);
}

NextByte::NextByte(nn::LanguageModel& model, const SamplingOptions& options)
    : model_(model), options_(options), random_(options.seed, stream_of("generate")) {}

int32_t NextByte::operator()(const std::vector<int32_t>& ids) { return choose(logits(ids)); }

// Of the last position, for the ids that are bytes: a larger vocabulary has rows that no text uses.
std::vector<double> NextByte::logits(const std::vector<int32_t>& ids) {
  const NoGrad off;
  const int64_t T = std::min(static_cast<int64_t>(ids.size()), model_.model_shape().seq_len);
  const Tensor tokens_BT = tensor(std::vector<int32_t>(ids.end() - T, ids.end()), {1, T});
  const Tensor logits_BTV = model_(tokens_BT, nn::Mask{});
  const int64_t bytes = std::min(ByteTokenizer::kVocabSize, model_.model_shape().vocab_size);
  const Tensor last = slice(slice(logits_BTV, 1, T - 1, T), 2, 0, bytes);
  std::vector<double> values = last.to_vector<double>();
  for (const double value : values) {
    require(std::isfinite(value),
            "sampling: the model's logits hold {}; the run diverged before this checkpoint, use an "
            "earlier one",
            value);
  }
  return values;
}

// Inverts the cumulative distribution over the likeliest ids, likeliest first.
int32_t NextByte::choose(const std::vector<double>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double uniform = random_.uniform(drawn_++);
  if (options_.temperature == 0) return order.front();
  const auto all = static_cast<int64_t>(order.size());
  order.resize(static_cast<size_t>(options_.top_k == 0 ? all : std::min(options_.top_k, all)));

  const double highest = logits[static_cast<size_t>(order.front())];
  std::vector<double> cumulative;
  double total = 0;
  for (const int32_t id : order) {
    total += std::exp((logits[static_cast<size_t>(id)] - highest) / options_.temperature);
    cumulative.push_back(total);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  const auto place = std::min<ptrdiff_t>(chosen - cumulative.begin(), std::ssize(order) - 1);
  return order[static_cast<size_t>(place)];
}

}  // namespace faultline::train
