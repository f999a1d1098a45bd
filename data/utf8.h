#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace faultline {

// A text with every invalid sequence replaced, and how much was.
struct Utf8Repair {
  std::string text;
  int64_t replaced = 0;       // U+FFFD written
  int64_t first_offset = -1;  // byte offset of the first invalid sequence; -1 when there is none
};

// Replaces each maximal invalid part by one U+FFFD, as the WHATWG Encoding Standard decodes UTF-8
// (overlong forms, surrogates and values above U+10FFFF are invalid byte by byte). Byte 0 is valid
// UTF-8 and stays.
Utf8Repair repair_utf8(std::string_view bytes);

}  // namespace faultline
