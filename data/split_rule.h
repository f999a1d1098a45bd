#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// GPT-2's rule: contractions, then a word, a number or other signs with at most one blank before
// them, then blanks.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Llama 3's rule: contractions in either case, any sign before a word, at most three digits, line
// ends apart.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How a text is cut into pieces before the merges: tokens never cross a piece. Each pattern cuts
// the pieces of the one before; its matches are pieces, and so is what lies between them. No
// pattern: the text is one piece. Immutable; any thread may use it.
//
// The patterns are written for Oniguruma, as Hugging Face tokenizers are, and run by PCRE2. What
// the two read alike is taken: characters, classes, . \s \S \d \D \p{..} \P{..} with general
// categories, groups, look-around, quantifiers. The rest is refused.
class SplitRule {
 public:
  // Throws InvalidArgument beginning with `where` for a pattern that is not one, may match nothing,
  // or uses what is refused.
  SplitRule(const std::vector<std::string>& patterns, const std::string& where);

  // Calls `take` with each piece, in order; together they are the text, which must be valid UTF-8.
  // Throws InvalidArgument when a pattern takes more steps than PCRE2 grants.
  void split(std::string_view text, const std::function<void(std::string_view)>& take) const;

 private:
  class Pattern;
  void split_from(size_t first, std::string_view text,
                  const std::function<void(std::string_view)>& take) const;
  std::vector<std::shared_ptr<const Pattern>> patterns_;
};

}  // namespace faultline
