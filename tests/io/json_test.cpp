#include "io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

Json again(const Json& value) { return Json::parse(value.to_text(), "test"); }

TEST(Json, WritesObjectsInTheOrderOfTheirMembers) {
  Json line = Json::object().set("step", 3).set("loss", 1.5).set("name", "a\"\\\n\x01");
  line.set("list", Json::array().push(1).push(true).push(Json()).push(Json::object()));
  line.set("step", int64_t{4});
  EXPECT_EQ(line.to_text(),
            R"({"step":4,"loss":1.5,"name":"a\"\\\n\u0001","list":[1,true,null,{}]})");
  EXPECT_EQ(again(line), line);
  EXPECT_EQ(Json::parse(line.to_indented_text(), "test"), line);
  EXPECT_EQ(Json::object().set("a", Json::array_of(std::vector<int>{1, 2})).to_indented_text(),
            "{\n  \"a\": [\n    1,\n    2\n  ]\n}\n");
}

TEST(Json, NumbersWithoutAValueAreStrings) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Json(std::nan("")).to_text(), "\"nan\"");
  EXPECT_EQ(Json(inf).to_text(), "\"inf\"");
  EXPECT_EQ(Json(-inf).to_text(), "\"-inf\"");
  EXPECT_TRUE(std::isnan(again(Json(std::nan(""))).real()));
  EXPECT_EQ(again(Json(inf)).real(), inf);
  EXPECT_EQ(again(Json(-inf)).real(), -inf);
}

RC_GTEST_PROP(Json, GivesEveryBitOfADoubleBack, (uint64_t bits)) {
  const auto value = std::bit_cast<double>(bits);
  const Json back = again(Json(value));
  if (std::isnan(value)) {
    RC_ASSERT(std::isnan(back.real()));
  } else {
    RC_ASSERT(std::bit_cast<uint64_t>(back.real()) == bits);
  }
}

RC_GTEST_PROP(Json, GivesEveryBitOfAFloatBack, (uint32_t bits)) {
  const auto value = std::bit_cast<float>(bits);
  RC_PRE(!std::isnan(value));
  RC_ASSERT(std::bit_cast<uint32_t>(static_cast<float>(again(Json(value)).real())) == bits);
}

RC_GTEST_PROP(Json, GivesIntegersBack, (int64_t value)) {
  RC_ASSERT(again(Json(value)).integer() == value);
}

TEST(Json, KeepsDoublesThatLookLikeIntegers) {
  for (const double value : {0.0, -0.0, 1.0, -3.0, 1e22, 5e-324, 1.7976931348623157e308}) {
    const Json back = again(Json(value));
    EXPECT_TRUE(back.is(Json::Kind::real)) << value;
    EXPECT_EQ(std::bit_cast<uint64_t>(back.real()), std::bit_cast<uint64_t>(value));
  }
  EXPECT_EQ(Json(std::numeric_limits<uint32_t>::max()).integer(), 4294967295);
  EXPECT_THROW(Json{std::numeric_limits<uint64_t>::max()}, InvalidArgument);
}

RC_GTEST_PROP(Json, GivesTextsBack, (const std::vector<uint8_t>& ascii)) {
  std::string text = "caf\xC3\xA9 ";
  for (const uint8_t c : ascii) text.push_back(static_cast<char>(c & 0x7f));
  RC_ASSERT(again(Json(text)).text() == text);
  RC_ASSERT(again(Json::object().set(text, 1)).members()[0].key == text);
}

TEST(Json, NamesWhatItCannotRead) {
  const auto text = [](std::string_view json) {
    return error_of<InvalidArgument>([&] { Json::parse(json, "config.json"); });
  };
  for (const char* bad : {"", "{", "[1,]", "{\"a\":}", "nul", "1 2", "{\"a\":1}x", "\"\xC0\xAF\"",
                          "[NaN]", "01", "'a'", "\"\x01\"", "[1e999]"}) {
    EXPECT_THAT(text(bad), HasSubstr("config.json: this is not JSON")) << bad;
  }
  EXPECT_THAT(text(R"({"a":1,"b":{"a":1,"a":2}})"), HasSubstr("the key \"a\" is there twice"));
  EXPECT_THAT(text(std::string(100'000, '[')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(text("[" + std::string(5000, 'x')), HasSubstr("not JSON"));
  EXPECT_NO_THROW(Json::parse(std::string(64, '[') + std::string(64, ']'), "deep"));
}

TEST(Json, HoldsNoMoreValuesThanWereAllowed) {
  // The object, the array and what is in it: 1 + 1 + 3 values.
  const std::string text = R"({"a":[0,null,"x"]})";
  EXPECT_NO_THROW(Json::parse(text, "header", 5));
  EXPECT_EQ(error_of<InvalidArgument>([&] { Json::parse(text, "header", 4); }),
            "header: holds more than 4 values");
}

TEST(Json, SaysWhatWasExpectedAndFound) {
  const Json value = Json::parse(R"({"a":"x","b":18446744073709551615,"c":[1]})", "test");
  const auto text = [](auto&& action) { return error_of<InvalidArgument>(action); };
  EXPECT_THAT(text([&] { value.at("a").integer(); }),
              HasSubstr("expected an integer, found a string: \"x\""));
  EXPECT_THAT(text([&] { value.at("a").real(); }), HasSubstr("expected a number"));
  EXPECT_THAT(text([&] { value.at("b").integer(); }), HasSubstr("expected an integer"));
  EXPECT_THAT(text([&] { value.at("c").members(); }), HasSubstr("expected an object"));
  EXPECT_THAT(text([&] { value.at("c").find("a"); }), HasSubstr("expected an object"));
  EXPECT_THAT(text([&] { value.at("d"); }), HasSubstr("there is no 'd'"));
  EXPECT_THAT(text([&] { value.items(); }), HasSubstr("expected an array, found an object"));
  EXPECT_THAT(text([&] { Json().boolean(); }), HasSubstr("found null"));
  EXPECT_THAT(text([&] { Json(1).set("a", 1); }), HasSubstr("expected an object"));
  EXPECT_THAT(text([&] { Json(1).push(1); }), HasSubstr("expected an array"));
}

}  // namespace
}  // namespace faultline
