#include "data/split_pattern.h"

#include <algorithm>

#include "core/error.h"

namespace faultline {
namespace {

// Unicode's White_Space, which is Oniguruma's \s; PCRE2's own also takes U+180E.
constexpr std::string_view kBlanks =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

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
  template <class... Args>
  void check(bool holds, fmt::format_string<Args...> text, Args&&... args) const {
    if (holds) return;
    fail(
        "{}: the pattern {} has {} at byte {}; Faultline takes only what PCRE2 and Oniguruma read "
        "alike",
        where_, pattern_, fmt::format(text, std::forward<Args>(args)...), at_);
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
        return escape(false);
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

  // \s and the like; in a class a set is written without brackets of its own.
  void escape(bool in_class) {
    const char name = peek(1);
    if (name == 's') {
      out_ += in_class ? std::string(kBlanks) : fmt::format("[{}]", kBlanks);
      at_ += 2;
    } else if (name == 'S' && !in_class) {
      out_ += fmt::format("[^{}]", kBlanks);
      at_ += 2;
    } else if (name == 'p' || name == 'P') {
      category();
    } else {
      const bool sign = name > ' ' && name < 127 && !is_letter(name) && !is_digit(name);
      const bool known = name == 'r' || name == 'n' || name == 't' || name == 'd' || name == 'D';
      check(sign || known, "the escape \\{}", name);
      copy(2);
    }
  }

  // \p{L}, \p{Lu}: one general category.
  void category() {
    constexpr std::string_view kMajor = "LMNPSZC";
    const size_t close = pattern_.find('}', at_);
    const std::string_view name =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 2, close - at_ - 2);
    const bool known = (name.size() == 2 || name.size() == 3) && name[0] == '{' &&
                       kMajor.find(name[1]) != std::string_view::npos &&
                       (name.size() == 2 || (name[2] >= 'a' && name[2] <= 'z'));
    check(known, "a property that is no general category such as \\p{{L}} or \\p{{Lu}}");
    copy(close + 1 - at_);
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
        escape(true);
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
