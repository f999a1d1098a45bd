#include <algorithm>
#include <numeric>

#include "core/context.h"
#include "core/rng.h"
#include "lab/case.h"
#include "nn/context_window.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: what does not fit is cut off, and what is left is reported as what was asked for.
nn::ContextFit cut_and_say_nothing(int64_t requested, int64_t new_tokens,
                                   const nn::ContextWindow& window) {
  nn::ContextFit fit = nn::fit_context(requested, new_tokens, window);
  fit.requested = fit.used;
  fit.dropped.clear();
  return fit;
}
// page: end

// The remedy: whatever cut the text, count before and report what is not kept.
nn::ContextFit count_before_the_cut(int64_t requested, int64_t new_tokens,
                                    const nn::ContextWindow& window) {
  nn::ContextFit fit = cut_and_say_nothing(requested, new_tokens, window);
  fit.requested = requested;
  int64_t end = 0;
  for (const nn::TokenRange& kept : fit.kept) {
    if (kept.begin > end) fit.dropped.push_back({end, kept.begin});
    end = kept.end;
  }
  if (end < requested) fit.dropped.push_back({end, requested});
  return fit;
}

// What is reported of each token, by its place in the prompt: a row for each figure of the answer.
Grid picture(const nn::ContextFit& fit, const std::vector<int32_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<double> marks(static_cast<size_t>(3 * count), 0);
  std::fill_n(marks.begin(), fit.requested, 1);
  for (const int32_t token : fit.of(tokens)) marks[static_cast<size_t>(count + token)] = 1;
  for (const nn::TokenRange& range : fit.dropped) {
    std::fill_n(marks.begin() + 2 * count + range.begin, range.end - range.begin, 1);
  }
  return {"tokens of the prompt that the answer reports", 3,        count, marks,
          {"figure", {"requested", "used", "dropped"}},   {"token"}};
}

// Twelve tokens for a context of eight, the tail to be kept; the seed says how many are to follow.
void twelve_in_eight(const RunOptions& options, Metrics& metrics) {
  constexpr int64_t kTokens = 12;
  const Context& context = Context::current();
  const nn::ContextWindow window{.positions = 8, .policy = nn::ContextPolicy::keep_tail};
  const auto more = static_cast<int64_t>(1 + options.seed % 20);
  const nn::ContextFit fit = context.seams.call<nn::ContextFitSeam>(kTokens, more, window);
  context.events.emit(nn::ContextFitEvent{kTokens, more, window, fit});
  int64_t dropped = 0;
  for (const nn::TokenRange& range : fit.dropped) dropped += range.end - range.begin;
  std::vector<int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  metrics.count("reported requested", static_cast<double>(fit.requested));
  metrics.count("reported dropped", static_cast<double>(dropped));
  metrics.count("used", static_cast<double>(fit.used));
  metrics.count("first token seen", fit.of(tokens).front());
  metrics.add(picture(fit, tokens));
}

}  // namespace

FAULT(input_context_overflow) {
  Fault& fault = lab.fault(
      {.id = "input.context-overflow",
       .title = "A prompt longer than the context is cut without a word",
       .domain = "data",
       .seed = "004 1",
       .mechanism =
           "A model knows n positions; a prompt of more tokens must be refused or cut. A server that "
           "cuts and then counts reports the length of what is left: of twelve tokens for a "
           "context of eight it keeps tokens 4 to 11, and says 8 requested, 8 used, 0 dropped, "
           "status 200. The first four are gone, which is where instructions stand. Where half the "
           "context is kept free a prompt one token too long loses half of itself: 65536 positions "
           "leave 32770 tokens. A prompt of exactly n tokens is too long as well: no position is "
           "left for an answer.",
       .symptom =
           "The model ignores the beginning of long inputs, or answers something that nobody asked, "
           "with confidence. Short inputs are fine. No error, no field in the answer, at most a line "
           "in a server's log.",
       .article_says = "That an overflow shows as an error 413 of the server.",
       .truth =
           "Often it is a silent 200. With learned positions an overflow is an index error; with "
           "rotary ones nothing fails and quality falls.",
       .fix =
           "Count tokens before anything is cut; choose a policy (refuse, keep the tail, keep the "
           "head, sinks and tail); report requested, used and dropped ranges in the answer.",
       .sources =
           {"Ollama issue 3839 (since April 2024; measured 11 July 2026: 160689 tokens sent, 16387 "
            "counted, an invented answer). https://github.com/ollama/ollama/issues/3839",
            "Ollama issue 17427 (28 July 2026): more than num_ctx tokens are cut to num_ctx / 2 + 2. "
            "https://github.com/ollama/ollama/issues/17427",
            "Ollama issue 8099 (14 December 2024): ollama run truncates; the warning is in the "
            "server's log only. https://github.com/ollama/ollama/issues/8099"},
       .look_alikes =
           "attn.past-ignored also loses the beginning, but of short texts too, and only with a "
           "cache. A model that attends poorly to the middle of a long text was given it: the counts "
           "tell which it is.",
       .exercise =
           "An API reports only how many tokens of the prompt were evaluated. How do you find "
           "out from outside whether it cut your prompt, with two requests?",
       .answer =
           "Send the prompt, and the same with 100 tokens more in front. If the count does not grow "
           "by 100, it was cut. A secret word at the very beginning, asked for at the end, shows "
           "which side went."});

  fault.only_variant()
      .wrong([](Context& context) {
        return context.seams.replace<nn::ContextFitSeam>(&cut_and_say_nothing);
      })
      .remedy([](Context& context) {
        return context.seams.replace<nn::ContextFitSeam>(&count_before_the_cut);
      })
      .run(&twelve_in_eight)
      .expect("reported requested", 8)
      .expect("reported dropped", 0)
      .caught_by("input.checks")
      .in_generation({.needs = {{"context", "1"}}});
}

}  // namespace faultline::lab
