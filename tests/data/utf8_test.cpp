#include "data/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace faultline {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

std::string repeated(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += kReplacement;
  return text;
}

std::string encoded(uint32_t c) {
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), tail(c)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | c >> 12), tail(c >> 6), tail(c)};
  return {static_cast<char>(0xf0 | c >> 18), tail(c >> 12), tail(c >> 6), tail(c)};
}

// Counts as the WHATWG decoder and Python's errors="replace" give them.
TEST(Utf8, ReplacesEachMaximalInvalidPartOnce) {
  const std::pair<std::string, int> vectors[] = {
      {"\xE2\x82", 1},          // a euro sign cut short
      {"\xC0\xAF", 2},          // overlong
      {"\xED\xA0\x80", 3},      // a surrogate
      {"\xF4\x90\x80\x80", 4},  // above U+10FFFF
      {"\x80", 1},              // a lone continuation
      {"\xF0\x9F\x98", 1},      // an emoji cut short
      {"\xE0\x80\x80", 3},      // overlong
      {"\xF0\x80\x80\x80", 4},  // overlong
      {"\xF5\x80", 2},          // no such first byte
      {"\xFF", 1},
  };
  for (const auto& [bytes, count] : vectors) {
    const Utf8Repair alone = repair_utf8(bytes);
    EXPECT_EQ(alone.replaced, count);
    EXPECT_EQ(alone.text, repeated(count));
    EXPECT_EQ(alone.first_offset, 0);
    const Utf8Repair between = repair_utf8("A" + bytes + "B");
    EXPECT_EQ(between.text, "A" + repeated(count) + "B");
    EXPECT_EQ(between.first_offset, 1);
  }
  EXPECT_EQ(repair_utf8("\x41\xF0\x9F\x98\x42").text, "A" + kReplacement + "B");
}

TEST(Utf8, KeepsEveryCodePoint) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const Utf8Repair result = repair_utf8(encoded(c));
    ASSERT_EQ(result.replaced, 0) << c;
    ASSERT_EQ(result.text, encoded(c)) << c;
  }
  EXPECT_EQ(repair_utf8("").first_offset, -1);
}

TEST(Utf8, RefusesEverySurrogate) {
  for (uint32_t c = 0xd800; c < 0xe000; ++c) ASSERT_EQ(repair_utf8(encoded(c)).replaced, 3) << c;
}

RC_GTEST_PROP(Utf8, RepairedTextNeedsNoRepair, (const std::string& bytes)) {
  const Utf8Repair once = repair_utf8(bytes);
  const Utf8Repair twice = repair_utf8(once.text);
  RC_ASSERT(twice.replaced == 0);
  RC_ASSERT(twice.text == once.text);
  RC_ASSERT((once.replaced == 0) == (once.text == bytes));
}

}  // namespace
}  // namespace faultline
