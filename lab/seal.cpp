#include "lab/seal.h"

#include "core/error.h"
#include "core/rng.h"
#include "core/whole_number.h"
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

uint64_t number_of(const std::string& digits) {
  const auto value = whole_number<uint64_t>(digits, 16);
  require(value.has_value(), "it holds '{}'", digits);
  return *value;
}

std::string bytes_of(const std::string& hex) {
  require(hex.size() % kBlock == 0, "it is cut");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(number_of(hex.substr(i, 2)));
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
    const uint64_t key = number_of(check);
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
