#include "io/byte_tokenizer_file.h"

#include <vector>

#include "core/error.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace faultline {
namespace {

// The code point that GPT-2 spells each byte with: itself where it is visible, else the next one
// from 256 on.
std::vector<int> spelling() {
  const auto visible = [](int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  std::vector<int> points;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) points.push_back(visible(byte) ? byte : next++);
  return points;
}

// Code points below 2048.
std::string utf8(int point) {
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
}

Json byte_level(const char* key, bool value) {
  return Json::object()
      .set("type", "ByteLevel")
      .set("add_prefix_space", false)
      .set("trim_offsets", false)
      .set(key, value);
}

Json tokenizer() {
  std::vector<JsonMember> vocabulary;
  for (const int point : spelling()) {
    vocabulary.push_back({utf8(point), Json(vocabulary.size())});
  }
  const Json model = Json::object()
                         .set("type", "BPE")
                         .set("dropout", Json())
                         .set("unk_token", Json())
                         .set("continuing_subword_prefix", Json())
                         .set("end_of_word_suffix", Json())
                         .set("fuse_unk", false)
                         .set("byte_fallback", false)
                         .set("ignore_merges", false)
                         .set("vocab", Json::object(std::move(vocabulary)))
                         .set("merges", Json::array());
  return Json::object()
      .set("version", "1.0")
      .set("truncation", Json())
      .set("padding", Json())
      .set("added_tokens", Json::array())
      .set("normalizer", Json())
      .set("pre_tokenizer", byte_level("use_regex", false))
      .set("post_processor", Json())
      .set("decoder", byte_level("use_regex", false))
      .set("model", model);
}

}  // namespace

std::string byte_tokenizer_json() { return tokenizer().to_indented_text(); }

std::string byte_tokenizer_config_json(int64_t positions) {
  return Json::object()
      .set("tokenizer_class", "PreTrainedTokenizerFast")
      .set("model_max_length", positions)
      .set("clean_up_tokenization_spaces", false)
      .to_indented_text();
}

bool is_byte_tokenizer(const std::string& path) {
  return Json::parse(map_file(path).text(), path) == tokenizer();
}

}  // namespace faultline
