#include "data/byte_level.h"

#include <array>

namespace faultline {
namespace {

constexpr uint32_t kCharacters = 0x144;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// byte -> its character as two bytes of UTF-8, or one and a 0.
struct Map {
  std::array<std::array<char, 2>, 256> utf8{};
  std::array<uint8_t, 256> length{};
  std::array<int16_t, kCharacters> byte_of{};  // -1: no byte
};

constexpr Map make_map() {
  Map map;
  for (auto& byte : map.byte_of) byte = -1;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = stands_for_itself(byte) ? byte : next++;
    map.byte_of[character] = static_cast<int16_t>(byte);
    if (character < 0x80) {
      map.utf8[byte] = {static_cast<char>(character), 0};
      map.length[byte] = 1;
    } else {
      map.utf8[byte] = {static_cast<char>(0xc0 | character >> 6),
                        static_cast<char>(0x80 | (character & 0x3f))};
      map.length[byte] = 2;
    }
  }
  return map;
}

constexpr Map kMap = make_map();

}  // namespace

std::string_view byte_level_character(uint8_t byte) {
  return {kMap.utf8[byte].data(), kMap.length[byte]};
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_level_character(static_cast<uint8_t>(byte));
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    uint32_t character = static_cast<uint8_t>(text[at++]);
    if (character >= 0x80) {
      // All characters of the map are below U+0800: two bytes.
      if (character < 0xc2 || character >= 0xe0 || at == text.size()) return std::nullopt;
      const auto tail = static_cast<uint8_t>(text[at++]);
      if ((tail & 0xc0) != 0x80) return std::nullopt;
      character = (character & 0x1f) << 6 | (tail & 0x3f);
    }
    if (character >= kCharacters || kMap.byte_of[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kMap.byte_of[character]);
  }
  return bytes;
}

}  // namespace faultline
