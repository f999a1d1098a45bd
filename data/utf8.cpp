#include "data/utf8.h"

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

struct Sequence {
  size_t length;  // bytes taken
  bool valid;
};

// The sequence at `at`, or the longest start of one: at least one byte.
Sequence sequence_at(std::string_view bytes, size_t at) {
  auto wanted = continuation_of(static_cast<uint8_t>(bytes[at]));
  size_t length = 1;
  if (wanted.count < 0) return {length, false};
  for (; wanted.count > 0; --wanted.count, ++length) {
    if (at + length == bytes.size()) return {length, false};
    const auto byte = static_cast<uint8_t>(bytes[at + length]);
    if (byte < wanted.lowest || byte > wanted.highest) return {length, false};
    wanted.lowest = 0x80;
    wanted.highest = 0xbf;
  }
  return {length, true};
}

}  // namespace

Utf8Repair repair_utf8(std::string_view bytes) {
  Utf8Repair result;
  result.text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.valid) {
      result.text.append(bytes, at, sequence.length);
    } else {
      result.text += "\xEF\xBF\xBD";
      if (result.replaced++ == 0) result.first_offset = static_cast<int64_t>(at);
    }
    at += sequence.length;
  }
  return result;
}

}  // namespace faultline
