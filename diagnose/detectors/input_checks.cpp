// input.checks: a text goes into a model whole, or its user is told what was left out; and what
// comes out of bytes is text.
//
// Sees: the fit of each prompt to the context (what the program reports as requested, used, kept
// and dropped), and the program's way from bytes to text, which it runs on known bytes. Fires:
//   - input.context-overflow, where the tokens reported as requested are not those of the text,
//   where
//     kept and dropped ranges are not the whole text in order, or where more is kept than the
//     window has room for;
//   - input.bad-utf8, where the decoder gives something else than the WHATWG Encoding Standard for
//     one of the vectors below: invalid bytes, a character in portions, a character beyond ASCII.
// The numbers are exact; there is no threshold.
// Silent: any policy that reports what it drops, and invalid bytes that become U+FFFD.
// It serves two rows of the catalogue: both are checks of an input that needs no model.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "data/text_decoder.h"
#include "diagnose/detector.h"
#include "nn/context_window.h"

namespace faultline::diagnose {
namespace {

struct Vector {
  const char* what;
  std::vector<std::string_view> portions;
  std::string_view text;
};

// clang-format off
std::vector<Vector> vectors() {
  return {
      {"plain letters", {"In the ", "beginning"}, "In the beginning"},
      {"a character of two bytes", {"\xC3\xA9"}, "\xC3\xA9"},
      {"a character of four bytes, one at a time", {"\xF0", "\x9F", "\x98", "\x80"},
       "\xF0\x9F\x98\x80"},
      {"a cut character", {"\xE2\x82"}, "\xEF\xBF\xBD"},
      {"an overlong form", {"\xC0\xAF"}, "\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"a surrogate", {"\xED\xA0\x80"}, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"a value above U+10FFFF", {"\xF4\x90\x80\x80"},
       "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"a continuation byte alone", {"\x80"}, "\xEF\xBF\xBD"},
      {"a cut character between letters", {"A\xF0\x9F\x98", "B"}, "A\xEF\xBF\xBD" "B"},
  };
}
// clang-format on

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{}{:02X}", text.empty() ? "" : " ", static_cast<unsigned char>(byte));
  }
  return text.empty() ? "nothing" : text;
}

// Whether the ranges are [0, n) together, none overlapping another.
bool covers(const nn::ContextFit& fit, int64_t n) {
  std::vector<nn::TokenRange> all = fit.kept;
  all.insert(all.end(), fit.dropped.begin(), fit.dropped.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const nn::TokenRange& range : all) {
    if (range.begin != end) return false;
    end = range.end;
  }
  return end == n;
}

int64_t size_of(const std::vector<nn::TokenRange>& ranges) {
  return std::accumulate(
      ranges.begin(), ranges.end(), int64_t{0},
      [](int64_t sum, const nn::TokenRange& range) { return sum + range.end - range.begin; });
}

class InputChecks : public Watcher {
 public:
  InputChecks(Context& context, Findings& findings) : Watcher(context, findings, "input.checks") {
    on(&InputChecks::fitted);
    on(&InputChecks::decodes);
  }

 private:
  void fitted(const nn::ContextFitEvent& event) {
    looked();
    const nn::ContextFit& fit = event.fit;
    const int64_t kept = size_of(fit.kept);
    const int64_t dropped = size_of(fit.dropped);
    const bool told = fit.requested == event.tokens && covers(fit, event.tokens) &&
                      fit.used == kept && kept <= event.window.positions;
    if (told) return;
    report(
        "input.context-overflow", 0.98, "context",
        fmt::format("a text of {} tokens is reported as {} requested, {} used and {} dropped; "
                    "the model is given {}, its window has {}",
                    event.tokens, fit.requested, fit.used, dropped, kept, event.window.positions));
  }

  void decodes(const TextDecodingEvent& event) {
    looked();
    for (const Vector& vector : vectors()) {
      const std::string found = event.decode(vector.portions);
      if (found == vector.text) continue;
      std::string bytes;
      for (const std::string_view portion : vector.portions) bytes += portion;
      report("input.bad-utf8", 0.98, "decode",
             fmt::format("{} ({}) becomes {}; as UTF-8 it is {}", vector.what, hex(bytes),
                         hex(found), hex(vector.text)));
      return;
    }
  }
};

}  // namespace

DETECTOR(input_checks) {
  return {"input.checks",
          WatchLevel::light,
          {{"input.context-overflow",
            "The prompt is longer than the context, and a part of it was left out without a word: "
            "the model answers a text that nobody wrote.",
            "Take a policy (refuse, keep the tail, keep the head, sinks and tail) and report the "
            "tokens requested, used and dropped, as ranges.",
            "Kept and dropped ranges together are the whole prompt."},
           {"input.bad-utf8",
            "Bytes became text by another rule than UTF-8's: invalid ones pass, characters are cut "
            "between tokens, or each byte is taken for a character.",
            "Decode UTF-8 and nothing else; hold the bytes of an unfinished character until the "
            "next token, and write U+FFFD for what is invalid.",
            "Known bytes give the text of the WHATWG Encoding Standard, in any portions."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<InputChecks>(context, findings);
          }};
}

}  // namespace faultline::diagnose
