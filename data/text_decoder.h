#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "data/utf8_stream.h"

namespace faultline {

// The characters that the bytes of one token complete.
struct TextDecodingSeam {
  static constexpr const char* name = "text decoding";
  using Signature = std::string(Utf8Stream& stream, std::string_view bytes);
  static std::string standard(Utf8Stream& stream, std::string_view bytes) {
    return stream.add(bytes);
  }
};

// Text is about to be made of tokens' bytes. `decode` turns any portions into text as the program
// will, without touching the program's own.
struct TextDecodingEvent {
  const std::function<std::string(std::span<const std::string_view> portions)>& decode;
};

// Makes text of the bytes of tokens as they come; announces itself to whoever tests how.
class TextDecoder {
 public:
  TextDecoder();
  std::string add(std::string_view bytes);
  // Nothing more comes.
  std::string finish() { return stream_.finish(); }

 private:
  Utf8Stream stream_;
};

// The text of some portions of bytes.
std::string decode_text(std::span<const std::string_view> portions);

}  // namespace faultline
