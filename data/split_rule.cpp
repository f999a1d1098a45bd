#include "data/split_rule.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <optional>

#include "core/error.h"
#include "data/json_field.h"
#include "data/split_pattern.h"

namespace faultline {
namespace {

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 128> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

// One compiled pattern.
class SplitRule::Pattern {
 public:
  Pattern(const std::string& pattern, const std::string& where) : source_(pattern) {
    const std::string translated = pcre_pattern(pattern, where);
    const std::unique_ptr<pcre2_compile_context, Free> context(
        pcre2_compile_context_create(nullptr));
    invariant(context != nullptr, "split rule: no memory for PCRE2");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &at, context.get()));
    require(code_ != nullptr, "{}: the pattern {} is not one: {}", where, shown(pattern),
            pcre_message(error));
    uint32_t may_match_nothing = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &may_match_nothing);
    require(may_match_nothing == 0,
            "{}: the pattern {} may match nothing; a piece has at least one character", where,
            shown(pattern));
    // Without a JIT for this machine the interpreter does the same, slower.
    jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  // Place and end of the next match from `at` on; nothing when there is none.
  struct Match {
    size_t begin, end;
  };
  class Search {
   public:
    explicit Search(const Pattern& pattern)
        : pattern_(pattern),
          data_(pcre2_match_data_create_from_pattern(pattern.code_.get(), nullptr)) {
      invariant(data_ != nullptr, "split rule: no memory for PCRE2");
    }
    std::optional<Match> next(std::string_view text, size_t at) {
      int found = PCRE2_ERROR_JIT_STACKLIMIT;
      if (pattern_.jit_) {
        found = pcre2_jit_match(pattern_.code_.get(), units(text), text.size(), at, 0, data_.get(),
                                nullptr);
      }
      // The interpreter keeps its stack on the heap.
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match(pattern_.code_.get(), units(text), text.size(), at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data_.get(), nullptr);
      }
      if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
      if (found < 0) {
        fail("split rule: the pattern {} failed on a text of {} bytes, at byte {}: {}",
             shown(pattern_.source_), text.size(), at, pcre_message(found));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
      return Match{bounds[0], bounds[1]};
    }

   private:
    const Pattern& pattern_;
    std::unique_ptr<pcre2_match_data, Free> data_;
  };

 private:
  std::string source_;
  std::unique_ptr<pcre2_code, Free> code_;
  bool jit_ = false;
};

SplitRule::SplitRule(const std::vector<std::string>& patterns, const std::string& where) {
  for (const std::string& pattern : patterns) {
    patterns_.push_back(std::make_shared<const Pattern>(pattern, where));
  }
}

void SplitRule::split(std::string_view text,
                      const std::function<void(std::string_view)>& take) const {
  split_from(0, text, take);
}

void SplitRule::split_from(size_t first, std::string_view text,
                           const std::function<void(std::string_view)>& take) const {
  if (text.empty()) return;
  if (first == patterns_.size()) return take(text);
  const bool last = first + 1 == patterns_.size();
  const auto pass_on = [&](size_t begin, size_t end) {
    if (begin == end) return;
    const std::string_view piece = text.substr(begin, end - begin);
    last ? take(piece) : split_from(first + 1, piece, take);
  };
  Pattern::Search search(*patterns_[first]);
  size_t done = 0;
  while (done < text.size()) {
    const std::optional<Pattern::Match> match = search.next(text, done);
    if (!match) break;
    pass_on(done, match->begin);
    pass_on(match->begin, match->end);
    done = match->end;
  }
  pass_on(done, text.size());
}

}  // namespace faultline
