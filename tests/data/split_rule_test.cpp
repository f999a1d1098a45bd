#include "data/split_rule.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "data/utf8.h"

namespace faultline {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces(const std::vector<std::string>& patterns, std::string_view text) {
  Pieces found;
  SplitRule(patterns, "test").split(text, [&](std::string_view piece) {
    found.emplace_back(piece);
  });
  return found;
}
Pieces gpt2(std::string_view text) { return pieces({std::string(kGpt2Pattern)}, text); }
Pieces llama3(std::string_view text) { return pieces({std::string(kLlama3Pattern)}, text); }

TEST(SplitRule, CutsAsGpt2Does) {
  EXPECT_EQ(gpt2("Hello  world's 12345!"), (Pieces{"Hello", " ", " world", "'s", " 12345", "!"}));
  EXPECT_EQ(gpt2("I'LL we'll\n\n x"), (Pieces{"I", "'", "LL", " we", "'ll", "\n\n", " x"}));
}

TEST(SplitRule, CutsAsLlama3Does) {
  EXPECT_EQ(llama3("Hello  world's 12345!"),
            (Pieces{"Hello", " ", " world", "'s", " ", "123", "45", "!"}));
  EXPECT_EQ(llama3("I'LL x\n\n y!\n"), (Pieces{"I", "'LL", " x", "\n\n", " y", "!\n"}));
}

// U+180E is a blank for PCRE2 only; U+0085 and U+3000 are for both.
TEST(SplitRule, TakesForBlanksWhatUnicodeDoes) {
  EXPECT_EQ(gpt2("a\u180e"), (Pieces{"a", "\u180e"}));
  EXPECT_EQ(gpt2("\u180e!"), (Pieces{"\u180e!"}));
  EXPECT_EQ(gpt2("\u0085!"), (Pieces{"\u0085", "!"}));
  EXPECT_EQ(gpt2("\u3000!"), (Pieces{"\u3000", "!"}));
}

// Letters and digits of Unicode 15 to 16, which PCRE2's tables may lack.
TEST(SplitRule, KnowsTheLettersOfUnicode16) {
  EXPECT_EQ(gpt2("a\U00031350\U0002EBF0\u1C89b"), (Pieces{"a\U00031350\U0002EBF0\u1C89b"}));
  EXPECT_EQ(gpt2("1\U00010D40\U0001CCF0"), (Pieces{"1\U00010D40\U0001CCF0"}));
}

TEST(SplitRule, KeepsWhatLiesBetweenMatches) {
  EXPECT_EQ(pieces({"b+"}, "abbcb"), (Pieces{"a", "bb", "c", "b"}));
  EXPECT_EQ(pieces({"b+", "c"}, "abbcbaca"), (Pieces{"a", "bb", "c", "b", "a", "c", "a"}));
  EXPECT_EQ(pieces({}, "abc"), (Pieces{"abc"}));
  EXPECT_EQ(gpt2(""), Pieces{});
}

TEST(SplitRule, GivesUpOnAPatternWithoutEnd) {
  const SplitRule rule({"(a+)+b"}, "test");
  EXPECT_THROW(rule.split(std::string(64, 'a'), [](std::string_view) {}), InvalidArgument);
}

RC_GTEST_PROP(SplitRule, PiecesAreTheText, (const std::string& bytes)) {
  const std::string text = repair_utf8(bytes).text;
  for (const auto& found : {gpt2(text), llama3(text)}) {
    std::string joined;
    for (const std::string& piece : found) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
    RC_ASSERT(joined == text);
  }
}

}  // namespace
}  // namespace faultline
