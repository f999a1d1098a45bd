#include "core/state.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/attributes.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/intern.h"

namespace faultline {
namespace {

TEST(State, AddsAPartUnderAPrefixAndGivesItBack) {
  State optimizer;
  optimizer.tensors["m"] = tensor({1.0F, 2.0F});
  optimizer.set_integer("step", 41);
  State all;
  all.add("optimizer", optimizer);
  all.set_integer("optimizer2.step", 1);
  all.set_integer("optimize", 2);
  EXPECT_EQ(all.integer("optimizer.step"), 41);
  const State part = all.part("optimizer");
  EXPECT_EQ(part.values.size(), 1U);
  EXPECT_EQ(part.integer("step"), 41);
  EXPECT_TRUE(part.tensor("m").same_handle(optimizer.tensors["m"]));
}

TEST(State, NumbersSurviveAsText) {
  State state;
  for (const int64_t value : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                              std::numeric_limits<int64_t>::max()}) {
    state.set_integer("n", value);
    EXPECT_EQ(state.integer("n"), value);
  }
  EXPECT_TRUE(rc::check("doubles", [](uint64_t bits) {
    const auto value = std::bit_cast<double>(bits);
    State s;
    s.set_real("x", value);
    const double back = s.real("x");
    const bool same = std::bit_cast<uint64_t>(back) == bits;
    RC_ASSERT(same || (std::isnan(value) && std::isnan(back)));
  }));
  state.set_real("x", -std::numeric_limits<double>::infinity());
  EXPECT_EQ(state.real("x"), -std::numeric_limits<double>::infinity());
}

TEST(State, NamesWhatIsMissingOrNoNumber) {
  State state;
  state.values["lr"] = "fast";
  state.values["step"] = "12x";
  state.values["empty"] = "";
  state.values["huge"] = "9223372036854775808";
  EXPECT_THROW(state.real("lr"), InvalidArgument);
  EXPECT_THROW(state.integer("step"), InvalidArgument);
  EXPECT_THROW(state.integer("empty"), InvalidArgument);
  EXPECT_THROW(state.integer("huge"), InvalidArgument);
  try {
    state.tensor("model.w");
    FAIL() << "a missing tensor must throw";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("model.w"), std::string::npos);
  }
}

TEST(Attributes, AreReadBackOnlyAsTheTypeThatWasStored) {
  struct Point {
    double x, y;
  };
  struct Other {
    double x, y;
  };
  const Attributes stored = Point{1.5, -2};
  EXPECT_EQ(stored.as<Point>().x, 1.5);
  EXPECT_EQ(stored.as<Point>().y, -2);
  EXPECT_THROW(stored.as<Other>(), InternalError);
  EXPECT_THROW(Attributes().as<Point>(), InternalError);
  const Attributes copy = stored;
  EXPECT_EQ(copy.as<Point>().y, -2);
}

TEST(Intern, GivesOnePointerForEqualTexts) {
  const std::string text = "layer.0.attn";
  const char* first = intern(text);
  EXPECT_EQ(first, intern(std::string("layer.0") + ".attn"));
  EXPECT_STREQ(first, "layer.0.attn");
  EXPECT_NE(first, intern("layer.1.attn"));
}

TEST(DType, NamesAndSizesGoBothWays) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
    with_type(dtype, [&]<class T>() {
      EXPECT_EQ(dtype_of<T>(), dtype);
      EXPECT_EQ(sizeof(T), size_of(dtype));
    });
  }
  EXPECT_THROW(dtype_from_name("f33"), InvalidArgument);
}

TEST(Convert, TruncatesTestsForZeroAndTakesTheRealPart) {
  EXPECT_EQ(convert<int32_t>(-2.75), -2);
  EXPECT_EQ(convert<int64_t>(float16(3.5F)), 3);
  EXPECT_TRUE(convert<bool>(0.25F));
  EXPECT_FALSE(convert<bool>(-0.0));
  EXPECT_TRUE(convert<bool>(bfloat16(1e-30F)));
  EXPECT_TRUE(convert<bool>(std::numeric_limits<double>::quiet_NaN())) << "a NaN is not zero";
  EXPECT_EQ(convert<double>(std::complex<double>(1.5, 9)), 1.5);
  EXPECT_EQ(convert<std::complex<double>>(float16(0.5F)), (std::complex<double>(0.5, 0)));
  EXPECT_EQ(convert<float>(true), 1.0F);
}

}  // namespace
}  // namespace faultline
