#include "core/float16.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/dtype.h"

namespace faultline {
namespace {

constexpr uint32_t kPatterns = 1U << 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
struct Format;
template <>
struct Format<float16> {
  using Peer = Eigen::half;
  static constexpr int kSignificandBits = 10;
  static constexpr uint16_t kInfinity = 0x7c00;
};
template <>
struct Format<bfloat16> {
  using Peer = Eigen::bfloat16;
  static constexpr int kSignificandBits = 7;
  static constexpr uint16_t kInfinity = 0x7f80;
};

template <class T>
class SixteenBit : public testing::Test {};
using BothFormats = testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(SixteenBit, BothFormats);

template <class T>
uint16_t peer_bits(float value) {
  return std::bit_cast<uint16_t>(typename Format<T>::Peer(value));
}

template <class T>
T pattern(uint32_t bits) {
  return T::from_bits(static_cast<uint16_t>(bits));
}

// The value halfway between the numbers with the bits `magnitude` and `magnitude` + 1; beyond the
// largest finite number, halfway to what would come next without the limit.
template <class T>
double halfway(uint32_t magnitude) {
  const double low = static_cast<double>(pattern<T>(magnitude));
  if (magnitude + 1 < Format<T>::kInfinity) {
    return (low + static_cast<double>(pattern<T>(magnitude + 1))) / 2;
  }
  return low + (low - static_cast<double>(pattern<T>(magnitude - 1))) / 2;
}

TYPED_TEST(SixteenBit, EveryPatternSurvivesARoundTripThroughFloatAndDouble) {
  for (uint32_t bits = 0; bits < kPatterns; ++bits) {
    const auto value = pattern<TypeParam>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      // A NaN stays one with its sign and payload, and becomes quiet.
      const auto quiet =
          static_cast<uint16_t>(bits | 1U << (Format<TypeParam>::kSignificandBits - 1));
      ASSERT_EQ(TypeParam(wide).bits, quiet) << bits;
      continue;
    }
    ASSERT_EQ(TypeParam(wide).bits, bits);
    ASSERT_EQ(TypeParam(static_cast<double>(value)).bits, bits);
  }
}

TYPED_TEST(SixteenBit, EveryPatternHasTheValueThatEigenGives) {
  using Peer = typename Format<TypeParam>::Peer;
  for (uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float ours = static_cast<float>(pattern<TypeParam>(bits));
    const float theirs = static_cast<float>(std::bit_cast<Peer>(static_cast<uint16_t>(bits)));
    if (std::isnan(theirs)) {
      ASSERT_TRUE(std::isnan(ours)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(ours), std::bit_cast<uint32_t>(theirs)) << bits;
    }
  }
}

TYPED_TEST(SixteenBit, RoundsToNearestEvenAtEveryMidpoint) {
  for (uint32_t bits = 0; bits < Format<TypeParam>::kInfinity; ++bits) {
    const double middle = halfway<TypeParam>(bits);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(TypeParam(middle).bits, even) << middle;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0)).bits, bits) << middle;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 1e300)).bits, bits + 1) << middle;
    ASSERT_EQ(TypeParam(-middle).bits, even | 0x8000U) << middle;
    // The midpoint is a float too (except below the smallest), and so are its neighbours there.
    const float single = static_cast<float>(middle);
    if (static_cast<double>(single) != middle) continue;
    ASSERT_EQ(TypeParam(single).bits, even) << middle;
    ASSERT_EQ(TypeParam(std::nextafter(single, 0.0F)).bits, bits) << middle;
    ASSERT_EQ(TypeParam(std::nextafter(single, kInfinity)).bits, bits + 1) << middle;
  }
}

TYPED_TEST(SixteenBit, AgreesWithEigenOnMidpointsAndADenseSetOfFloats) {
  for (uint32_t bits = 0; bits < Format<TypeParam>::kInfinity; ++bits) {
    const auto middle = static_cast<float>(halfway<TypeParam>(bits));
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInfinity)}) {
      ASSERT_EQ(TypeParam(value).bits, peer_bits<TypeParam>(value)) << value;
      ASSERT_EQ(TypeParam(-value).bits, peer_bits<TypeParam>(-value)) << value;
    }
  }
  // Every 1,021st float (a prime, so that all low bits occur): four million of them.
  for (uint64_t bits = 0; bits <= std::numeric_limits<uint32_t>::max(); bits += 1021) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value))));
    } else {
      ASSERT_EQ(TypeParam(value).bits, peer_bits<TypeParam>(value)) << value;
    }
  }
}

TYPED_TEST(SixteenBit, ANanKeepsItsSignAndUpperPayloadAndIsQuiet) {
  constexpr int kDropped = 23 - Format<TypeParam>::kSignificandBits;
  constexpr uint32_t kQuiet = 1U << (Format<TypeParam>::kSignificandBits - 1);
  // Quiet, so that a conversion on the way (float to double) changes nothing.
  for (const uint32_t payload : {0x400000U, 0x400001U, 0x7fffffU, 0x5a5a5aU}) {
    for (const uint32_t sign : {0U, 1U}) {
      const auto nan = std::bit_cast<float>(sign << 31 | 0x7f800000U | payload);
      const uint32_t expected =
          sign << 15 | Format<TypeParam>::kInfinity | kQuiet | payload >> kDropped;
      EXPECT_EQ(TypeParam(nan).bits, expected);
    }
  }
  // Only lower bits set, and signalling: without the quiet bit it would become infinity.
  const auto signalling = std::bit_cast<double>(uint64_t{0x7ff0000000000001});
  EXPECT_EQ(TypeParam(signalling).bits, Format<TypeParam>::kInfinity | kQuiet);
}

TYPED_TEST(SixteenBit, InfinityAndZeroKeepTheirSigns) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(TypeParam(infinity).bits, Format<TypeParam>::kInfinity);
  EXPECT_EQ(TypeParam(-infinity).bits, Format<TypeParam>::kInfinity | 0x8000U);
  EXPECT_EQ(TypeParam(1e300).bits, Format<TypeParam>::kInfinity);
  EXPECT_EQ(TypeParam(0.0).bits, 0);
  EXPECT_EQ(TypeParam(-0.0).bits, 0x8000U);
  EXPECT_EQ(TypeParam(-1e-300).bits, 0x8000U);
  EXPECT_EQ(TypeParam(std::numeric_limits<double>::denorm_min()).bits, 0);
}

double fp16(double value) { return static_cast<double>(float16(value)); }
double bf16(double value) { return static_cast<double>(bfloat16(value)); }

// The limits of each format.
TEST(Float16, HasTheLimitsOfIeeeBinary16) {
  EXPECT_EQ(fp16(65504), 65504);
  EXPECT_EQ(static_cast<double>(float16::from_bits(0x7bff)), 65504);
  EXPECT_EQ(static_cast<double>(float16::from_bits(0x0400)), 0x1p-14);
  EXPECT_EQ(static_cast<double>(float16::from_bits(0x0001)), 0x1p-24);
  EXPECT_EQ(static_cast<double>(float16::from_bits(0x3c01)) - 1, 0x1p-10);
}

TEST(BFloat16, HasTheLimitsOfTheUpperHalfOfAFloat) {
  EXPECT_EQ(static_cast<double>(bfloat16::from_bits(0x7f7f)), 0x1.fep127);
  EXPECT_EQ(static_cast<double>(bfloat16::from_bits(0x0080)), 0x1p-126);
  EXPECT_EQ(static_cast<double>(bfloat16::from_bits(0x0001)), 0x1p-133);
  EXPECT_EQ(static_cast<double>(bfloat16::from_bits(0x3f81)) - 1, 0x1p-7);
}

// Rounding edges. Exact.
TEST(Float16, RoundsTheKnownEdges) {
  EXPECT_EQ(fp16(65519.99), 65504);
  EXPECT_EQ(fp16(65520), std::numeric_limits<double>::infinity());
  EXPECT_EQ(fp16(0x1p-25), 0) << "a tie, to even";
  EXPECT_EQ(fp16(std::nextafter(0x1p-25, 1.0)), 0x1p-24);
  EXPECT_EQ(fp16(1e-8), 0);
  EXPECT_EQ(fp16(1e-7), 2 * 0x1p-24);
  EXPECT_EQ(fp16(1e-5), 168 * 0x1p-24);
  EXPECT_EQ(fp16(1e-12), 0);
  EXPECT_EQ(fp16(0.999), 0.99902343750);
}

TEST(BFloat16, RoundsTheKnownEdges) {
  EXPECT_EQ(bf16(65504), 65536);
  EXPECT_EQ(bf16(1e5), 99840);
  EXPECT_EQ(bf16(1e-8), 0x1.58p-27);
  EXPECT_NEAR(bf16(1e-8), 1.00117e-8, 1e-13);  // as printed with six digits
  EXPECT_EQ(bf16(0.999), 1.0);
  EXPECT_EQ(bf16(0.95), 0.94921875);
  EXPECT_EQ(bf16(0.9), 0.8984375);
  EXPECT_GT(bf16(1e-12), 0);
}

// Counting by ones stops where half a unit in the last place reaches one.
TEST(Float16, ACounterStopsAt2048AndInBfloatAt256) {
  EXPECT_EQ(fp16(2047 + 1), 2048);
  EXPECT_EQ(fp16(2048 + 1), 2048);
  EXPECT_EQ(bf16(255 + 1), 256);
  EXPECT_EQ(bf16(256 + 1), 256);
}

// 1 + 2^-11 + 2^-40 is above the midpoint of 1 and its neighbour, but rounds to that midpoint as a
// float, and from there to even: 1.
TEST(Float16, ADoubleIsRoundedOnce) {
  const double above = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(fp16(above), 1 + 0x1p-10);
  EXPECT_EQ(fp16(static_cast<float>(above)), 1) << "by way of float it rounds twice";
  EXPECT_EQ(static_cast<double>(convert<float16>(above)), 1 + 0x1p-10);
  const double above_bf16 = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(bf16(above_bf16), 1 + 0x1p-7);
  EXPECT_EQ(bf16(static_cast<float>(above_bf16)), 1);
  EXPECT_EQ(static_cast<double>(convert<bfloat16>(above_bf16)), 1 + 0x1p-7);
}

// An int64 too wide for a float must not round twice either.
TEST(Float16, AnIntegerIsRoundedOnce) {
  const int64_t above = (int64_t{1} << 40) + (int64_t{1} << 32) + 1;
  EXPECT_EQ(static_cast<double>(convert<bfloat16>(above)), 0x1p40 + 0x1p33);
}

}  // namespace
}  // namespace faultline
