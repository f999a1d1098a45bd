#include "core/context.h"
#include "core/rng.h"
#include "data/text_decoder.h"
#include "data/utf8.h"
#include "lab/case.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: bytes are text already;
std::string as_they_are(Utf8Stream&, std::string_view bytes) { return std::string(bytes); }

// each token's bytes are decoded for themselves;
std::string token_by_token(Utf8Stream&, std::string_view bytes) {
  Utf8Stream stream;
  const std::string text = stream.add(bytes);
  return text + stream.finish();
}

// each byte is a character, as iconv -f ISO-8859-1 -t UTF-8 has it.
std::string as_latin_1(Utf8Stream&, std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code >= 0x80) text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3F) : code);
  }
  return text;
}
// page: end

// ---- remedies -----------------------------------------------------------------------------------

// Holds what is unfinished, and repairs the rest.
std::string hold_and_repair(Utf8Stream& stream, std::string_view bytes) {
  return stream.add(bytes);
}

using Decode = std::string(Utf8Stream&, std::string_view);
Plant decode_by(Decode* by) {
  return [by](Context& context) { return context.seams.replace<TextDecodingSeam>(by); };
}

int64_t times(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++count;
  }
  return count;
}

// A letter that the seed chooses, which stands before everything.
std::string letter(const RunOptions& options) {
  return std::string(1, static_cast<char>('a' + options.seed % 26));
}

struct Decoded {
  std::string text;
  int64_t replacements = 0;
};

// What the program makes of these portions.
Decoded decoded(const std::vector<std::string_view>& portions) {
  TextDecoder decoder;
  Decoded result;
  for (const std::string_view portion : portions) result.text += decoder.add(portion);
  result.text += decoder.finish();
  result.replacements = times(result.text, kReplacementCharacter);
  return result;
}

// One of each kind: cut, overlong, a surrogate, beyond U+10FFFF, a continuation alone, cut again.
void invalid_bytes(const RunOptions& options, Metrics& metrics) {
  const std::string first = letter(options);
  int64_t replacements = 0;
  int64_t left = 0;
  for (const std::string_view bytes :
       {"\xE2\x82", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xF0\x9F\x98"}) {
    const Decoded found = decoded({first, bytes});
    replacements += found.replacements;
    left += repair_utf8(found.text).replaced;
  }
  metrics.count("U+FFFD written", static_cast<double>(replacements));
  metrics.count("invalid parts in the text", static_cast<double>(left));
}

void one_emoji_in_four_tokens(const RunOptions& options, Metrics& metrics) {
  const std::string first = letter(options);
  const Decoded found = decoded({first, "\xF0", "\x9F", "\x98", "\x80"});
  metrics.count("U+FFFD written", static_cast<double>(found.replacements));
  metrics.count("bytes of the emoji", static_cast<double>(found.text.size() - 1));
}

void one_e_acute(const RunOptions& options, Metrics& metrics) {
  const std::string first = letter(options);
  metrics.count("bytes of \xC3\xA9",
                static_cast<double>(decoded({first, "\xC3\xA9"}).text.size() - 1));
}

}  // namespace

FAULT(input_bad_utf8) {
  Fault& fault = lab.fault(
      {.id = "input.bad-utf8",
       .title = "Bytes become text by another rule than UTF-8",
       .domain = "data",
       .seed = "004 1",
       .mechanism =
           "A character is one to four bytes, and tokens of a byte-level vocabulary end anywhere. "
           "Passing bytes on as text lets invalid ones through: of E2 82, C0 AF, ED A0 80, F4 90 80 "
           "80, 80 and F0 9F 98 a decoder must make 1 + 2 + 3 + 4 + 1 + 1 = 12 times U+FFFD. "
           "Decoding token by token breaks a character that comes in four: F0, 9F, 98, 80 are four "
           "U+FFFD, and together U+1F600. Taking each byte for a character (ISO-8859-1) never "
           "fails, because every byte is one: \xC3\xA9 is C3 A9, and becomes the four bytes C3 83 C2 "
           "A9, which is mojibake.",
       .symptom =
           "A server dies in its JSON library when an answer holds half a character; black diamonds "
           "in place of emoji, only while streaming; accents that become two letters each.",
       .article_says = "To find wrong encodings with iconv -f ISO-8859-1 -t UTF-8.",
       .truth =
           "That conversion cannot fail, so it finds nothing, and it breaks every text that was "
           "right. iconv -f UTF-8 -t UTF-8 is the check.",
       .fix =
           "Validate input as UTF-8 and name the first bad byte; decode a stream with the bytes of "
           "an unfinished character held back; write U+FFFD for what is invalid.",
       .sources =
           {"llama.cpp issue 9195 (27 August 2024): the server ends on invalid UTF-8 in an answer. "
            "https://github.com/ggml-org/llama.cpp/issues/9195",
            "llama.cpp issue 11738 (7 February 2025): type_error.316 on a cut character. "
            "https://github.com/ggml-org/llama.cpp/issues/11738",
            "llama.cpp issue 6396 (2024): a request that is not UTF-8. "
            "https://github.com/ggml-org/llama.cpp/issues/6396",
            "WHATWG Encoding Standard, UTF-8 decoder. https://encoding.spec.whatwg.org/#utf-8-decoder"},
       .look_alikes =
           "A model trained on broken text writes mojibake by itself: look at its tokens, not at the "
           "screen. A font without a glyph shows a box and has the right bytes.",
       .exercise = "Why is C0 AF, a form of '/' in two bytes, not simply decoded as '/'?",
       .answer =
           "Checks of paths and quotes look for the byte 2F. An overlong form would pass them and "
           "become a '/' afterwards, so UTF-8 forbids every form but the shortest."});

  fault.variant("invalid", "Invalid bytes pass as text")
      .wrong(decode_by(&as_they_are))
      .remedy(decode_by(&hold_and_repair))
      .claimed("iconv -f ISO-8859-1 -t UTF-8", decode_by(&as_latin_1))
      .run(&invalid_bytes)
      .expect("U+FFFD written", 0)
      .expect("invalid parts in the text", 12)
      .caught_by("input.checks")
      .in_generation({});

  fault.variant("split-stream", "A character is cut between tokens")
      .wrong(decode_by(&token_by_token))
      .remedy(decode_by(&hold_and_repair))
      .run(&one_emoji_in_four_tokens)
      .expect("U+FFFD written", 4)
      .expect("bytes of the emoji", 12)
      .caught_by("input.checks")
      .in_generation({});

  fault.variant("mojibake", "UTF-8 is converted to UTF-8 once more")
      .wrong(decode_by(&as_latin_1))
      .remedy(decode_by(&hold_and_repair))
      .run(&one_e_acute)
      .expect("bytes of \xC3\xA9", 4)
      .caught_by("input.checks")
      .in_generation({});
}

}  // namespace faultline::lab
