#include "kernels/visibility.h"

#include <gtest/gtest.h>

namespace faultline::test {
namespace {

// Every rule on a small scale, queries before, among and after the keys.
template <class Check>
void for_each_rule(const Check& check) {
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 1, 3, 100}) {
      for (const int64_t prefix : {0, 2, 9}) {
        for (const int64_t sinks : {0, 1, 3, 100}) {
          check(
              MaskAttributes{.causal = causal, .window = window, .prefix = prefix, .sinks = sinks});
        }
      }
    }
  }
}

constexpr int64_t kKeys = 7;

TEST(Visibility, TheRangesOfAQueryHoldExactlyTheKeysItSees) {
  for_each_rule([](const MaskAttributes& mask) {
    for (int64_t position = -4; position < 12; ++position) {
      const VisibleKeys ranges = visible_keys(mask, position, kKeys);
      ASSERT_TRUE(0 <= ranges.first && ranges.first <= ranges.begin && ranges.begin <= ranges.end &&
                  ranges.end <= kKeys);
      int64_t count = 0;
      for (int64_t k = 0; k < kKeys; ++k) {
        const bool inside = k < ranges.first || (k >= ranges.begin && k < ranges.end);
        EXPECT_EQ(sees(mask, position, k), inside) << "position " << position << ", key " << k;
        count += inside ? 1 : 0;
        if (inside) {
          EXPECT_LT(k, ranges.reach());
        }
      }
      EXPECT_EQ(ranges.count(), count);
    }
  });
}

TEST(Visibility, TheRangeOfAKeyHoldsExactlyThePositionsThatSeeIt) {
  for_each_rule([](const MaskAttributes& mask) {
    for (int64_t k = 0; k < kKeys; ++k) {
      for (int64_t position = -4; position < 12; ++position) {
        const PositionRange range = positions_that_see(mask, k);
        EXPECT_EQ(sees(mask, position, k), position >= range.begin && position < range.end)
            << "position " << position << ", key " << k;
      }
    }
  });
}

// A block of queries needs no key between the ranges of its first and its last one.
TEST(Visibility, TheRangesGrowWithThePosition) {
  for_each_rule([](const MaskAttributes& mask) {
    for (int64_t position = -4; position < 12; ++position) {
      const VisibleKeys one = visible_keys(mask, position, kKeys);
      const VisibleKeys next = visible_keys(mask, position + 1, kKeys);
      EXPECT_TRUE(one.first <= next.first && one.begin <= next.begin && one.end <= next.end);
    }
  });
}

TEST(Visibility, HoldsForTheLargestWindow) {
  const MaskAttributes mask{.causal = false, .window = INT64_MAX};
  for (const int64_t position : {-5, 0, 5}) {
    EXPECT_EQ(visible_keys(mask, position, kKeys).count(), kKeys);
    EXPECT_LE(positions_that_see(mask, 3).begin, position);
    EXPECT_GT(positions_that_see(mask, 3).end, position);
  }
}

}  // namespace
}  // namespace faultline::test
