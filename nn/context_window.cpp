#include "nn/context_window.h"

#include <algorithm>

#include "core/error.h"

namespace faultline::nn {
namespace {

constexpr std::string_view kNames[] = {"error", "keep-tail", "keep-head", "sink+tail"};

// The text without the tokens [begin, end).
ContextFit without(int64_t requested, int64_t begin, int64_t end) {
  ContextFit fit{
      .requested = requested, .used = requested - (end - begin), .kept = {}, .dropped = {}};
  const auto add = [](std::vector<TokenRange>& ranges, TokenRange range) {
    if (range.begin < range.end) ranges.push_back(range);
  };
  add(fit.kept, {0, begin});
  add(fit.kept, {end, requested});
  add(fit.dropped, {begin, end});
  return fit;
}

}  // namespace

std::string_view name(ContextPolicy policy) { return kNames[static_cast<size_t>(policy)]; }

ContextPolicy context_policy_from_name(std::string_view text) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), text);
  require(found != std::end(kNames),
          "context policy: expected error, keep-tail, keep-head or sink+tail, got '{}'", text);
  return static_cast<ContextPolicy>(found - std::begin(kNames));
}

std::vector<int32_t> ContextFit::of(const std::vector<int32_t>& tokens) const {
  std::vector<int32_t> result;
  for (const TokenRange& range : kept) {
    result.insert(result.end(), tokens.begin() + range.begin, tokens.begin() + range.end);
  }
  return result;
}

ContextFit fit_context(int64_t requested, int64_t new_tokens, const ContextWindow& window) {
  const int64_t n = window.positions;
  require(n >= 1, "context: the model knows {} positions", n);
  switch (window.policy) {
    case ContextPolicy::keep_tail:
      return without(requested, 0, std::max<int64_t>(0, requested - n));
    case ContextPolicy::sink_tail:
      require(window.sinks >= 0 && window.sinks < n,
              "context: {} sinks do not leave a tail in {} positions; take fewer", window.sinks, n);
      if (requested <= n) return without(requested, requested, requested);
      return without(requested, window.sinks, window.sinks + requested - n);
    case ContextPolicy::keep_head:
      require(new_tokens < n,
              "context: {} new tokens leave no room for the text in {} positions; ask for at most "
              "{}, or take another policy",
              new_tokens, n, n - 1);
      return without(requested, std::min(requested, n - new_tokens), requested);
    case ContextPolicy::error:
      break;
  }
  require(requested <= n && new_tokens <= n - requested,
          "context: {} tokens and {} new ones are more than the {} positions of the model; shorten "
          "the text, ask for fewer, or take the policy keep-tail, keep-head or sink+tail",
          requested, new_tokens, n);
  return without(requested, requested, requested);
}

}  // namespace faultline::nn
