#include "nn/context_window.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "core/error.h"

namespace faultline::nn {
namespace {

std::vector<int32_t> twelve() {
  std::vector<int32_t> tokens(12);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

ContextFit fit(ContextPolicy policy, int64_t requested, int64_t new_tokens, int64_t sinks = 4) {
  return fit_context(requested, new_tokens, {.positions = 8, .policy = policy, .sinks = sinks});
}

using Ranges = std::vector<TokenRange>;

// Eight positions, tokens 0 to 11: facts A11.
TEST(ContextWindow, KeepsAndReportsExactRanges) {
  const ContextFit tail = fit(ContextPolicy::keep_tail, 12, 0);
  EXPECT_EQ(tail.of(twelve()), (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(tail.dropped, (Ranges{{0, 4}}));
  EXPECT_EQ(tail.requested, 12);
  EXPECT_EQ(tail.used, 8);
  const ContextFit head = fit(ContextPolicy::keep_head, 12, 0);
  EXPECT_EQ(head.of(twelve()), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(head.dropped, (Ranges{{8, 12}}));
  EXPECT_EQ(head.used, 8);
  const ContextFit sinks = fit(ContextPolicy::sink_tail, 12, 0);
  EXPECT_EQ(sinks.of(twelve()), (std::vector<int32_t>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(sinks.kept, (Ranges{{0, 4}, {8, 12}}));
  EXPECT_EQ(sinks.dropped, (Ranges{{4, 8}}));
  EXPECT_EQ(sinks.used, 8);
  EXPECT_THROW(fit(ContextPolicy::error, 12, 0), InvalidArgument);
}

TEST(ContextWindow, ATextAsLongAsTheWindowLeavesNoRoomForATokenMore) {
  EXPECT_NO_THROW(fit(ContextPolicy::error, 8, 0));
  EXPECT_THROW(fit(ContextPolicy::error, 8, 1), InvalidArgument);
  EXPECT_EQ(fit(ContextPolicy::error, 7, 1).used, 7);
  EXPECT_EQ(fit(ContextPolicy::keep_head, 8, 1).dropped, (Ranges{{7, 8}}));
  EXPECT_EQ(fit(ContextPolicy::keep_head, 7, 1).dropped, Ranges{});
  EXPECT_EQ(fit(ContextPolicy::keep_head, 12, 7).kept, (Ranges{{0, 1}}));
  EXPECT_THROW(fit(ContextPolicy::keep_head, 2, 8), InvalidArgument);
  // They slide: the window may be full.
  EXPECT_EQ(fit(ContextPolicy::keep_tail, 8, 100).used, 8);
  EXPECT_EQ(fit(ContextPolicy::sink_tail, 8, 100).used, 8);
}

TEST(ContextWindow, TakesAnyNumberOfNewTokens) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(fit(ContextPolicy::error, 3, kMost), InvalidArgument);
  EXPECT_THROW(fit(ContextPolicy::keep_head, 3, kMost), InvalidArgument);
  EXPECT_EQ(fit(ContextPolicy::keep_tail, 3, kMost).used, 3);
  EXPECT_EQ(fit(ContextPolicy::sink_tail, 12, kMost).used, 8);
}

TEST(ContextWindow, KeepsATextThatFits) {
  for (const ContextPolicy policy : {ContextPolicy::error, ContextPolicy::keep_tail,
                                     ContextPolicy::keep_head, ContextPolicy::sink_tail}) {
    const ContextFit whole = fit(policy, 3, 2);
    EXPECT_EQ(whole.kept, (Ranges{{0, 3}})) << name(policy);
    EXPECT_EQ(whole.dropped, Ranges{}) << name(policy);
    EXPECT_EQ(context_policy_from_name(name(policy)), policy);
  }
  EXPECT_EQ(fit(ContextPolicy::sink_tail, 9, 0, /*sinks=*/0).kept, (Ranges{{1, 9}}));
  EXPECT_THROW(fit(ContextPolicy::sink_tail, 9, 0, /*sinks=*/8), InvalidArgument);
  EXPECT_THROW(context_policy_from_name("half"), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
