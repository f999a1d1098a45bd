#include "data/split_pattern.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "data/json_field.h"

namespace faultline {
namespace {

// Unicode's White_Space, which is Oniguruma's \s; PCRE2's own also takes U+180E.
constexpr std::string_view kBlanks =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Letters and numbers that Unicode 15 to 16 added, which a PCRE2 before 10.46 does not know: with
// them every machine cuts alike.
constexpr std::string_view kNewLetters =
    R"(\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65})"
    R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240}\x{11380}-\x{11389}\x{1138B})"
    R"(\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02})"
    R"(\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA})"
    R"(\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
    R"(\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
    R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kNewNumbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
    R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) outside();
    return std::move(out_);
  }

 private:
  enum class InClass : uint8_t { no, yes };

  template <class... Args>
  void check(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (holds) return;
    fail(
        "{}: the pattern {} has {} at byte {}; Faultline takes only what PCRE2 and Oniguruma read "
        "alike",
        where_, shown(pattern_), fmt::format(text, std::forward<Args>(args)...), at_);
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void copy(size_t count = 1) {
    out_ += pattern_.substr(at_, count);
    at_ += std::min(count, pattern_.size() - at_);
  }

  void outside() {
    switch (peek()) {
      case '\\':
        return escape(InClass::no);
      case '[':
        return character_class();
      case '(':
        return group();
      case '{':
        return interval();
      case '^':
      case '$':
        check(false, "the anchor {}", peek());
        return;
      default:
        copy();
    }
  }

  // \s and the like.
  void escape(InClass in_class) {
    const char name = peek(1);
    if (name == 's') {
      add_set(kBlanks, in_class);
      at_ += 2;
    } else if (name == 'S' && in_class == InClass::no) {
      out_ += fmt::format("[^{}]", kBlanks);
      at_ += 2;
    } else if (name == 'p' || name == 'P') {
      category(in_class);
    } else {
      const bool sign = name > ' ' && name < 127 && !is_letter(name) && !is_digit(name);
      const bool known = name == 'r' || name == 'n' || name == 't' || name == 'd' || name == 'D';
      check(sign || known, "the escape \\{}", name);
      copy(2);
    }
  }

  // \p{L}, \p{Lu}: one general category.
  void category(InClass in_class) {
    constexpr std::string_view kMajor = "LMNPSZC";
    const size_t close = pattern_.find('}', at_);
    const std::string_view name =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 2, close - at_ - 2);
    const bool known = (name.size() == 2 || name.size() == 3) && name[0] == '{' &&
                       kMajor.find(name[1]) != std::string_view::npos &&
                       (name.size() == 2 || (name[2] >= 'a' && name[2] <= 'z'));
    check(known, "a property that is no general category such as \\p{{L}} or \\p{{Lu}}");
    const std::string_view whole = pattern_.substr(at_, close + 1 - at_);
    if (whole == R"(\p{L})" || whole == R"(\p{N})") {
      add_set(fmt::format("{}{}", whole, name[1] == 'L' ? kNewLetters : kNewNumbers), in_class);
    } else {
      out_ += whole;
    }
    at_ = close + 1;
  }

  // In a class a set is written without brackets of its own.
  void add_set(std::string_view set, InClass in_class) {
    out_ += in_class == InClass::yes ? std::string(set) : fmt::format("[{}]", set);
  }

  void character_class() {
    copy();
    if (peek() == '^') copy();
    check(peek() != ']', "a class that begins with ]");
    while (peek() != ']') {
      check(at_ < pattern_.size(), "a class without its end");
      check(peek() != '[', "a class in a class");
      check(peek() != '&' || peek(1) != '&', "&& in a class");
      if (peek() == '\\') {
        escape(InClass::yes);
      } else {
        copy();
      }
    }
    copy();
  }

  void group() {
    check(peek(1) != '*', "(*");
    if (peek(1) == '?') {
      const std::string_view rest = pattern_.substr(at_ + 2);
      const auto begins = [&](std::string_view kind) { return rest.starts_with(kind); };
      check(begins(":") || begins("i:") || begins("=") || begins("!") || begins("<=") ||
                begins("<!") || begins(">"),
            "a group of another kind than (?: (?i: (?= (?! (?<= (?<! (?>");
      copy(2);
      return;
    }
    copy();
  }

  // {2}, {2,} or {2,3}, and nothing after it that would change how it repeats.
  void interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      return end > begin;
    };
    bool whole = digits();
    if (whole && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      digits();
    }
    whole = whole && end < pattern_.size() && pattern_[end] == '}';
    check(whole, "a {{ that is not {{n}}, {{n,}} or {{n,m}}; write \\{{ for the sign");
    copy(end + 1 - at_);
    check(peek() != '+' && peek() != '?', "{} after an interval", peek());
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

}  // namespace faultline
