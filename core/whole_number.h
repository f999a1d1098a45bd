#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace faultline {

// The number that the whole text is, in digits of `base`; nothing for any other text or a number
// that T cannot hold.
template <std::integral T>
std::optional<T> whole_number(std::string_view text, int base = 10) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, base);
  return result.ec == std::errc{} && result.ptr == end ? std::optional(value) : std::nullopt;
}

}  // namespace faultline
