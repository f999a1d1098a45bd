#include "tests/support/compare.h"

#include <cmath>
#include <limits>

#include "autograd/functional.h"

namespace faultline::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Compare, FailsOnAPlantedNan) {
  const std::vector<double> clean{1, 2, 3};
  const std::vector<double> poisoned{1, kNan, 3};
  const std::vector<double> lax(3, 1e300);
  const Tolerance anything{.absolute = 1e300, .relative = 1e300};
  EXPECT_TRUE(close(clean, clean, {}));
  EXPECT_FALSE(close(poisoned, clean, anything));
  EXPECT_FALSE(close(clean, poisoned, anything));
  EXPECT_FALSE(close(poisoned, poisoned, anything));
  EXPECT_FALSE(within(poisoned, clean, lax));
  EXPECT_FALSE(within(clean, poisoned, lax));
  EXPECT_FALSE(within(clean, clean, {1, 1})) << "a bound is missing";
  EXPECT_FALSE(within({1, 2.5, 3}, clean, poisoned)) << "a NaN is no bound";
  EXPECT_FALSE(same_bits(tensor(poisoned, {3}), tensor(clean, {3})));
  EXPECT_FALSE(same_bits(tensor(poisoned, {3}), tensor(poisoned, {3})));
}

TEST(Compare, AcceptsNansOnlyAtTheSamePlacesAndOnlyWhenTold) {
  const std::vector<double> a{1, kNan, 3};
  const std::vector<double> b{kNan, 2, 3};
  EXPECT_TRUE(close(a, a, {.nan = Nan::must_match}));
  EXPECT_FALSE(close(a, b, {.absolute = 10, .nan = Nan::must_match}));
  EXPECT_TRUE(same_bits(tensor(a, {3}), tensor(a, {3}), Nan::must_match));
  EXPECT_FALSE(same_bits(tensor(a, {3}), tensor(b, {3}), Nan::must_match));
}

TEST(Compare, InfinitiesAreEqualOnlyToThemselves) {
  EXPECT_TRUE(close({kInfinity}, {kInfinity}, {}));
  EXPECT_FALSE(close({kInfinity}, {-kInfinity}, {.absolute = 1e308}));
  EXPECT_FALSE(close({1.0}, {kInfinity}, {.absolute = 1e308, .relative = 1}));
}

TEST(Compare, NamesTheWorstElementWithBothValues) {
  const auto result = close({1, 2.5, 3.25}, {1, 2, 3}, {.absolute = 0.125});
  const std::string text = result.message();
  EXPECT_NE(text.find("2 of 3 elements"), std::string::npos) << text;
  EXPECT_NE(text.find("element 1: 2.5, expected 2"), std::string::npos) << text;
}

TEST(Compare, BitsTellZeroesApartAndShapesCount) {
  EXPECT_FALSE(same_bits(tensor({0.0F}), tensor({-0.0F})));
  EXPECT_FALSE(same_bits(tensor({1.0F}), tensor({1.0})));
  EXPECT_FALSE(same_bits(zeros({2, 3}), zeros({3, 2})));
  EXPECT_FALSE(close(zeros({2, 3}), zeros({3, 2}), {.absolute = 1}));
}

TEST(Compare, UlpDistanceCountsRepresentableNumbers) {
  EXPECT_EQ(ulp_distance(1.0F, std::nextafter(1.0F, 2.0F)), 1);
  EXPECT_EQ(ulp_distance(0.0F, -0.0F), 0);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulp_distance(-tiny, tiny), 2);
  EXPECT_EQ(ulp_distance(1.0, 1.0 + 0x1p-50), 4);
  EXPECT_EQ(ulp_distance(kNan, kNan), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::quiet_NaN(), 1.0F),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ulp_distance(-1e300, 1e300), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace faultline::test
