#include "core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

namespace faultline {
namespace {

// The known answers of Random123's own test (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  using Counter = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

constexpr uint64_t kCount = 100000;

// With n independent draws the mean of a quantity of deviation s is within 5 s / sqrt(n) in all but
// one of 1.7 million seeds; the seed is fixed.
double five_sigma(double deviation) {
  return 5 * deviation / std::sqrt(static_cast<double>(kCount));
}

TEST(RandomSequence, UniformsFillTheUnitIntervalEvenly) {
  const RandomSequence random(17, stream_of("uniform"));
  double sum = 0;
  double squares = 0;
  std::array<int, 10> tenths{};
  for (uint64_t i = 0; i < kCount; ++i) {
    const double u = random.uniform(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(u, std::floor(u * 0x1p53) * 0x1p-53) << "a multiple of 2^-53";
    sum += u;
    squares += u * u;
    ++tenths[static_cast<size_t>(u * 10)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, five_sigma(std::sqrt(1.0 / 12)));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, five_sigma(std::sqrt(4.0 / 45)));
  for (const int count : tenths) {
    EXPECT_NEAR(static_cast<double>(count) / kCount, 0.1, five_sigma(0.3));  // sqrt(0.1 * 0.9)
  }
}

TEST(RandomSequence, NormalsHaveTheMomentsOfANormal) {
  const RandomSequence random(17, stream_of("normal"));
  std::array<double, 5> moments{};
  int within_one = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double z = random.normal(i);
    ASSERT_TRUE(std::isfinite(z));
    double power = 1;
    for (double& moment : moments) {
      moment += power / kCount;
      power *= z;
    }
    within_one += std::abs(z) < 1 ? 1 : 0;
  }
  // Deviation of z^k: sqrt(E z^2k - (E z^k)^2).
  EXPECT_NEAR(moments[1], 0, five_sigma(1));
  EXPECT_NEAR(moments[2], 1, five_sigma(std::sqrt(2.0)));
  EXPECT_NEAR(moments[3], 0, five_sigma(std::sqrt(15.0)));
  EXPECT_NEAR(moments[4], 3, five_sigma(std::sqrt(96.0)));
  EXPECT_NEAR(static_cast<double>(within_one) / kCount, std::erf(std::numbers::sqrt2 / 2),
              five_sigma(0.5));
}

TEST(RandomSequence, BelowGivesEveryNumberEquallyOftenAndNeverTheBound) {
  const RandomSequence random(17, stream_of("below"));
  std::array<int, 7> counts{};
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t n = random.below(counts.size(), i);
    ASSERT_LT(n, counts.size());
    ++counts[n];
  }
  for (const int count : counts) {
    EXPECT_NEAR(static_cast<double>(count) / kCount, 1.0 / 7, five_sigma(0.35));
  }
  EXPECT_EQ(random.below(1, 5), 0U);
}

TEST(RandomSequence, AValueDependsOnSeedStreamAndIndexOnly) {
  const RandomSequence random(3, 4);
  std::vector<uint64_t> forward;
  for (uint64_t i = 0; i < 100; ++i) forward.push_back(random.bits(i));
  for (uint64_t i = 100; i-- > 0;) EXPECT_EQ(RandomSequence(3, 4).bits(i), forward[i]);
  std::sort(forward.begin(), forward.end());
  EXPECT_EQ(std::unique(forward.begin(), forward.end()), forward.end());
  EXPECT_NE(RandomSequence(3, 5).bits(0), random.bits(0));
  EXPECT_NE(RandomSequence(4, 4).bits(0), random.bits(0));
  // All 64 bits of each count.
  constexpr uint64_t kHigh = uint64_t{1} << 40;
  EXPECT_NE(random.bits(kHigh), random.bits(0));
  EXPECT_NE(RandomSequence(3 + kHigh, 4).bits(0), random.bits(0));
  EXPECT_NE(RandomSequence(3, 4 + kHigh).bits(0), random.bits(0));
}

TEST(RandomSequence, NeighbouringStreamsAreNotCorrelated) {
  double product = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    product += RandomSequence(9, 1).normal(i) * RandomSequence(9, 2).normal(i);
  }
  EXPECT_NEAR(product / kCount, 0, five_sigma(1));
}

// FNV-1a's published values.
TEST(RandomSequence, StreamsByNameAreFnv1a) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325U);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8U);
}

}  // namespace
}  // namespace faultline
