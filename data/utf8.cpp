#include "data/utf8.h"

#include <cstring>

namespace faultline {
namespace {

// What may follow a first byte: how many bytes, and the range of the first of them. The range is
// what keeps out overlong forms (E0, F0), surrogates (ED) and values above U+10FFFF (F4).
struct Continuation {
  int count;  // -1: no sequence begins with this byte
  uint8_t lowest = 0x80;
  uint8_t highest = 0xbf;
};

Continuation continuation_of(uint8_t first) {
  if (first < 0x80) return {0};
  if (first < 0xc2) return {-1};
  if (first < 0xe0) return {1};
  if (first == 0xe0) return {2, 0xa0, 0xbf};
  if (first == 0xed) return {2, 0x80, 0x9f};
  if (first < 0xf0) return {2};
  if (first == 0xf0) return {3, 0x90, 0xbf};
  if (first < 0xf4) return {3};
  if (first == 0xf4) return {3, 0x80, 0x8f};
  return {-1};
}

}  // namespace

Utf8Part utf8_part_at(std::string_view bytes, size_t at) {
  auto wanted = continuation_of(static_cast<uint8_t>(bytes[at]));
  size_t length = 1;
  if (wanted.count < 0) return {length, Utf8Kind::invalid};
  for (; wanted.count > 0; --wanted.count, ++length) {
    if (at + length == bytes.size()) return {length, Utf8Kind::unfinished};
    const auto byte = static_cast<uint8_t>(bytes[at + length]);
    if (byte < wanted.lowest || byte > wanted.highest) return {length, Utf8Kind::invalid};
    wanted.lowest = 0x80;
    wanted.highest = 0xbf;
  }
  return {length, Utf8Kind::character};
}

size_t end_of_valid_utf8(std::string_view bytes, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at < bytes.size()) {
    uint64_t eight = 0;
    if (bytes.size() - at >= sizeof eight) {
      std::memcpy(&eight, bytes.data() + at, sizeof eight);
      if ((eight & kHighBits) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Part part = utf8_part_at(bytes, at);
    if (part.kind != Utf8Kind::character) break;
    at += part.length;
  }
  return at;
}

Utf8Repair repair_utf8(std::string_view bytes) {
  Utf8Repair result;
  result.text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = end_of_valid_utf8(bytes, at);
    result.text.append(bytes, at, end - at);
    at = end;
    if (at == bytes.size()) break;
    result.text += kReplacementCharacter;
    if (result.replaced++ == 0) result.first_offset = static_cast<int64_t>(at);
    at += utf8_part_at(bytes, at).length;
  }
  return result;
}

}  // namespace faultline
