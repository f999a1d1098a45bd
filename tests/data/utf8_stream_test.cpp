#include "data/utf8_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "data/utf8.h"

namespace faultline {
namespace {

TEST(Utf8Stream, GivesACharacterWithItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("\xF0"), "");
  EXPECT_EQ(stream.add("\x9F"), "");
  EXPECT_EQ(stream.add("\x98"), "");
  EXPECT_EQ(stream.waiting(), 3);
  EXPECT_EQ(stream.add("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.waiting(), 0);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.replaced(), 0);
}

// Python's and the WHATWG's counts, whatever the portions.
TEST(Utf8Stream, ReplacesAsManyAsOneLookWould) {
  const std::pair<std::string, int64_t> vectors[] = {
      {"\xE2\x82", 1},     {"\xC0\xAF", 2},     {"\xED\xA0\x80", 3}, {"\xF4\x90\x80\x80", 4},
      {"\x80", 1},         {"\xF0\x9F\x98", 1}, {"\xF0\x9F\xF0", 2}, {"\xE2\x82\xE2\x82\xAC", 1},
      {"\xC3\xC3\xA9", 1},
  };
  for (const auto& [bytes, count] : vectors) {
    Utf8Stream stream;
    std::string text;
    for (const char byte : bytes) text += stream.add({&byte, 1});
    text += stream.finish();
    EXPECT_EQ(stream.replaced(), count);
    EXPECT_EQ(text, repair_utf8(bytes).text);
  }
}

TEST(Utf8Stream, ReplacesAtOnceWhatNoByteCanMend) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("\x41\xF0\x9F\x98"), "A");
  EXPECT_EQ(stream.add("\x42"),
            "\xEF\xBF\xBD"
            "B");
  EXPECT_EQ(stream.add("\xED"), "");
  EXPECT_EQ(stream.add("\xA0"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate begins
  EXPECT_EQ(stream.add("\xC3"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.add("\xA9"), "\xEF\xBF\xBD");  // finish forgot the byte before
}

RC_GTEST_PROP(Utf8Stream, PortionsDoNotMatter, ()) {
  // Bytes that begin, continue and spoil characters, far more often than chance would.
  const auto byte = rc::gen::element('a', '\xC3', '\xE0', '\xE2', '\xED', '\xF0', '\xF4', '\x80',
                                     '\x8F', '\x90', '\xA0', '\xBF', '\xFF', '\0');
  const auto portions =
      *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(byte));
  Utf8Stream stream;
  std::string all;
  std::string text;
  for (const std::string& portion : portions) {
    all += portion;
    text += stream.add(portion);
    // What was given is whole, and at most an unfinished character waits.
    RC_ASSERT(repair_utf8(text).replaced == 0);
    RC_ASSERT(stream.waiting() <= 3);
  }
  text += stream.finish();
  RC_ASSERT(text == repair_utf8(all).text);
  RC_ASSERT(stream.replaced() == repair_utf8(all).replaced);
}

}  // namespace
}  // namespace faultline
