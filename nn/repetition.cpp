#include "nn/repetition.h"

#include <algorithm>
#include <cmath>
#include <set>

// Shapes: T positions, C hidden size, V vocabulary.
namespace faultline::nn {

Repetition repetition_of(std::span<const int32_t> tokens, int64_t n) {
  require(n >= 1, "repetition: n-grams have at least 1 token, got {}", n);
  const auto count = static_cast<int64_t>(tokens.size());
  Repetition result;
  if (count >= n) {
    std::set<std::vector<int32_t>> different;
    for (int64_t i = 0; i + n <= count; ++i) {
      different.emplace(tokens.begin() + i, tokens.begin() + i + n);
    }
    const auto all = static_cast<double>(count - n + 1);
    result.share = 1 - static_cast<double>(different.size()) / all;
  }
  for (int64_t length = count / 2; length > 0 && result.repeated_tail == 0; --length) {
    const auto tail = tokens.end() - length;
    if (std::equal(tail, tokens.end(), tail - length)) result.repeated_tail = length;
  }
  return result;
}

namespace {

// A block of a language model has a path such as "h.3" or "layers.3".
bool is_block(const std::string& path) {
  const size_t dot = path.find('.');
  return dot != std::string::npos && dot + 1 < path.size() &&
         std::all_of(path.begin() + static_cast<ptrdiff_t>(dot) + 1, path.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// What a pass shows of the positions from `first`: outputs of the blocks in order, then logits.
struct Pass {
  int64_t first = 0;
  int64_t positions = 0;
  std::vector<std::vector<double>> outputs;

  // Element range of a position in output i.
  std::span<const double> at(size_t i, int64_t position) const {
    const size_t width = outputs[i].size() / static_cast<size_t>(positions);
    return std::span(outputs[i]).subspan(static_cast<size_t>(position - first) * width, width);
  }
};

Pass run(LanguageModel& model, std::span<const int32_t> tokens, int64_t first, KvCache* cache) {
  Pass pass{first, static_cast<int64_t>(tokens.size()), {}};
  const auto watch =
      Context::current().events.subscribe<ForwardEvent>([&](const ForwardEvent& event) {
        if (is_block(event.module.path())) pass.outputs.push_back(event.output.to_vector<double>());
      });
  const std::vector<int32_t> ids(tokens.begin(), tokens.end());
  ModelInput input{.tokens_BT = tensor(ids, {1, pass.positions}), .mask = {}, .cache = cache};
  input.mask.query_offset = first;
  pass.outputs.push_back(model.forward(input).to_vector<double>());
  return pass;
}

// Of the finite ones: a tolerance in proportion to infinity would allow everything.
double largest(std::span<const double> values) {
  double found = 0;
  for (const double value : values) {
    if (std::isfinite(value)) found = std::max(found, std::abs(value));
  }
  return found;
}

// Infinite where a NaN is on one side only or on both; equal infinities are not apart.
double distance(std::span<const double> a, std::span<const double> b) {
  double found = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    found = std::isnan(apart) ? INFINITY : std::max(found, apart);
  }
  return found;
}

// Joins what one cached pass shows; passes come in the order of their positions.
void compare(const Pass& cached, const Pass& full, double tolerance, CacheDifference& result) {
  for (int64_t position = cached.first; position < cached.first + cached.positions; ++position) {
    for (size_t i = 0; i < full.outputs.size(); ++i) {
      const double apart = distance(cached.at(i, position), full.at(i, position));
      if (i + 1 == full.outputs.size())
        result.largest_logit = std::max(result.largest_logit, apart);
      const bool within = apart <= tolerance * largest(full.outputs[i]);
      if (within || result.position >= 0) continue;
      result.position = position;
      result.layer = static_cast<int64_t>(i);
    }
  }
}

}  // namespace

RepetitionReport locate_repetition(LanguageModel& model, std::span<const int32_t> tokens,
                                   int64_t prompt, KvCache& cache, double tolerance) {
  const auto count = static_cast<int64_t>(tokens.size());
  require(count > 0, "repetition: the text is empty");
  require(prompt >= 1 && prompt <= count,
          "repetition: a prompt of {} tokens does not fit a text of {}", prompt, count);
  require(cache.length() == 0, "repetition: the cache holds {} positions; give an empty one",
          cache.length());
  const NoGrad off;
  const EvaluationMode evaluation(model);
  const Pass full = run(model, tokens, 0, nullptr);
  CacheDifference difference;
  for (int64_t first = 0; first < count;) {
    const int64_t length = first == 0 ? prompt : 1;
    const auto part = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(length));
    const Pass cached = run(model, part, cache.length(), &cache);
    invariant(cached.outputs.size() == full.outputs.size(),
              "repetition: {} blocks ran with a cache and {} without", cached.outputs.size() - 1,
              full.outputs.size() - 1);
    compare({first, length, cached.outputs}, full, tolerance, difference);
    first += length;
  }
  return {repetition_of(tokens), difference,
          difference.position < 0 ? RepetitionOrigin::data : RepetitionOrigin::cache};
}

std::string place_of(const CacheDifference& difference, const ModelShape& shape) {
  if (difference.position < 0) return "nowhere";
  if (difference.layer >= shape.num_layers) {
    return fmt::format("the logits at position {}", difference.position);
  }
  return fmt::format("layer {} at position {}", difference.layer, difference.position);
}

}  // namespace faultline::nn
