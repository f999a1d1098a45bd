#include "lab/seal.h"

#include <charconv>

#include "core/error.h"
#include "core/rng.h"
#include "io/checksum.h"

namespace faultline::lab {
namespace {

// A text's length would tell one name from another, so all are filled up to a multiple of this.
constexpr size_t kBlock = 256;

// Its own inverse.
std::string under_key(std::string text, uint64_t key) {
  const RandomSequence random(key, stream_of("seal"));
  for (size_t i = 0; i < text.size(); ++i) text[i] ^= static_cast<char>(random.bits(i));
  return text;
}

std::string hex_of(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// The number in hexadecimal digits [begin, begin + count) of the text.
uint64_t number_in(const std::string& text, size_t begin, size_t count) {
  uint64_t value = 0;
  const char* end = text.data() + begin + count;
  const auto result = std::from_chars(text.data() + begin, end, value, 16);
  require(result.ec == std::errc{} && result.ptr == end, "it holds '{}'",
          text.substr(begin, count));
  return value;
}

std::string bytes_of(const std::string& hex) {
  require(hex.size() % kBlock == 0, "it is cut");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(number_in(hex, i, 2));
  return bytes;
}

}  // namespace

Json seal(const Json& content) {
  std::string text = content.to_text();
  text.resize((text.size() + kBlock - 1) / kBlock * kBlock, ' ');
  const uint64_t key = xxh64(text);
  return Json::object().set("sealed", hex_of(under_key(text, key))).set("check", hex(key));
}

Json unseal(const Json& sealed) {
  try {
    const std::string& check = sealed.at("check").text();
    require(check.size() == 16, "its check has {} digits", check.size());
    const uint64_t key = number_in(check, 0, 16);
    const std::string text = under_key(bytes_of(sealed.at("sealed").text()), key);
    require(xxh64(text) == key, "its check is another one's");
    return Json::parse(text, "the seal");
  } catch (const InvalidArgument& error) {
    fail("the seal is broken ({}): it is not what was written", error.what());
  }
}

bool is_sealed(const Json& json) {
  return json.is(Json::Kind::object) && json.find("sealed") != nullptr;
}

}  // namespace faultline::lab
