#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace faultline {

// U+FFFD, which stands where bytes were no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t {
  character,   // a whole one
  invalid,     // a maximal invalid part, whatever may follow it
  unfinished,  // the bytes end inside a character that more bytes could complete
};

struct Utf8Part {
  size_t length;  // bytes, at least 1
  Utf8Kind kind;
};

// What stands at `at`, which is below bytes.size(). Parts are cut as the WHATWG Encoding Standard
// decodes UTF-8: overlong forms, surrogates and values above U+10FFFF are invalid byte by byte.
Utf8Part utf8_part_at(std::string_view bytes, size_t at);

// Where the characters that begin at `at` stop being valid: bytes.size() when none is invalid.
size_t end_of_valid_utf8(std::string_view bytes, size_t at);

// A text with every invalid sequence replaced, and how much was.
struct Utf8Repair {
  std::string text;
  int64_t replaced = 0;       // U+FFFD written
  int64_t first_offset = -1;  // byte offset of the first invalid sequence; -1 when there is none
};

// Replaces each invalid or unfinished part by one U+FFFD. Byte 0 is valid UTF-8 and stays.
Utf8Repair repair_utf8(std::string_view bytes);

}  // namespace faultline
