#include "data/text_decoder.h"

#include "core/context.h"

namespace faultline {
namespace {

std::string decoded(Utf8Stream& stream, std::string_view bytes) {
  return Context::current().seams.call<TextDecodingSeam>(stream, bytes);
}

}  // namespace

std::string decode_text(std::span<const std::string_view> portions) {
  Utf8Stream stream;
  std::string text;
  for (const std::string_view bytes : portions) text += decoded(stream, bytes);
  return text + stream.finish();
}

TextDecoder::TextDecoder() {
  const std::function<std::string(std::span<const std::string_view>)> decode = &decode_text;
  Context::current().events.emit(TextDecodingEvent{decode});
}

std::string TextDecoder::add(std::string_view bytes) { return decoded(stream_, bytes); }

}  // namespace faultline
