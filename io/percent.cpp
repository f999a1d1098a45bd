#include "io/percent.h"

#include <charconv>
#include <cstdint>

#include <fmt/core.h>

namespace faultline {

std::string percent_encoded(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const bool is_reserved = i == 0 && bytes.starts_with("__");
    if (byte >= 0x80 || byte == '%' || is_reserved) {
      text += fmt::format("%{:02X}", byte);
    } else {
      text.push_back(bytes[i]);
    }
  }
  return text;
}

std::string percent_decoded(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i).substr(1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (text[i] == '%' && error == std::errc{} && end == text.data() + i + 3) {
      bytes.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      bytes.push_back(text[i]);
    }
  }
  return bytes;
}

}  // namespace faultline
