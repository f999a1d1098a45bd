#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace faultline {

// GPT-2 writes each byte of a token as one printable character, so that a vocabulary is a readable
// text file: 188 bytes stand for themselves (as the character of that number), the other 68, blanks
// and control bytes among them, are U+0100 to U+0143 in their order. A blank is U+0120.

// The character of a byte, in UTF-8.
std::string_view byte_level_character(uint8_t byte);

// Every byte as its character.
std::string to_byte_level(std::string_view bytes);

// The bytes again; nothing when a character stands for no byte or the text is not UTF-8.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace faultline
