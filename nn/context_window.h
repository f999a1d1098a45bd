#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace faultline::nn {

// Which tokens of a text a model is given when it does not know positions for all of them.
enum class ContextPolicy : uint8_t {
  error,      // refuses; the whole text and all new tokens must fit
  keep_tail,  // the last ones; slides on as tokens are added
  keep_head,  // the first ones, leaving room for all new tokens
  sink_tail,  // the first `sinks` and then the last ones; slides on ("Efficient streaming language
              // models with attention sinks", Xiao et al. 2023), with positions counted anew
};

// "error", "keep-tail", "keep-head", "sink+tail".
std::string_view name(ContextPolicy policy);
// The policy of that name; throws InvalidArgument that lists the names.
ContextPolicy context_policy_from_name(std::string_view text);

struct ContextWindow {
  int64_t positions = 0;  // that the model knows
  ContextPolicy policy = ContextPolicy::keep_tail;
  int64_t sinks = 4;
};

// Tokens [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TokenRange&) const = default;
};

// What became of a text of `requested` tokens.
struct ContextFit {
  int64_t requested = 0;
  int64_t used = 0;
  std::vector<TokenRange> kept;  // in order, none empty
  std::vector<TokenRange> dropped;

  // The kept tokens of the text, one behind the other.
  std::vector<int32_t> of(const std::vector<int32_t>& tokens) const;
};

// Fits a text to the window when `new_tokens` are to follow. The window holds the text and the new
// tokens: a text as long as the window leaves no room for one more. Under keep_tail and sink_tail
// the window slides, so the text may fill it; the others keep room for all new tokens, and throw
// InvalidArgument when they cannot.
ContextFit fit_context(int64_t requested, int64_t new_tokens, const ContextWindow& window);

// How a prompt is fitted, for whoever generates.
struct ContextFitSeam {
  static constexpr const char* name = "context fit";
  using Signature = ContextFit(int64_t requested, int64_t new_tokens, const ContextWindow& window);
  static ContextFit standard(int64_t requested, int64_t new_tokens, const ContextWindow& window) {
    return fit_context(requested, new_tokens, window);
  }
};

// A prompt of `tokens` tokens was fitted, and this is what its user is told.
struct ContextFitEvent {
  int64_t tokens;
  int64_t new_tokens;
  const ContextWindow& window;
  const ContextFit& fit;
};

}  // namespace faultline::nn
