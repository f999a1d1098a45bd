#include "io/byte_tokenizer_file.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "io/json.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

Json vocabulary() {
  return Json::parse(byte_tokenizer_json(), "tokenizer").at("model").at("vocab");
}

TEST(ByteTokenizerFile, TheIdOfAByteIsItsValue) {
  const Json vocab = vocabulary();
  ASSERT_EQ(vocab.members().size(), 256U);
  for (int64_t id = 0; id < 256; ++id) {
    EXPECT_EQ(vocab.members()[static_cast<size_t>(id)].value.integer(), id);
  }
}

// The table of GPT-2: 188 visible bytes are themselves, the other 68 follow from U+0100.
TEST(ByteTokenizerFile, BytesAreSpelledAsGpt2SpellsThem) {
  const std::pair<const char*, int64_t> spelled[] = {
      {"!", 33},       {"~", 126},      {"A", 65},      {"\u00a1", 161}, {"\u00ac", 172},
      {"\u00ae", 174}, {"\u00ff", 255}, {"\u0100", 0},  {"\u010a", 10},  {"\u0120", 32},
      {"\u0121", 127}, {"\u0142", 160}, {"\u0143", 173}};
  const Json vocab = vocabulary();
  for (const auto& [token, byte] : spelled) EXPECT_EQ(vocab.at(token).integer(), byte) << token;
}

TEST(ByteTokenizerFile, IsRecognisedByItsContent) {
  const ScratchDirectory scratch;
  const Json json = Json::parse(byte_tokenizer_json(), "tokenizer");
  EXPECT_TRUE(is_byte_tokenizer(scratch.write("tokenizer.json", byte_tokenizer_json())));
  EXPECT_TRUE(is_byte_tokenizer(scratch.write("tokenizer.json", json.to_text())));
  Json other = json;
  Json model = json.at("model");
  model.set("merges", Json::array().push(Json::array().push("a").push("b")));
  other.set("model", model);
  EXPECT_FALSE(is_byte_tokenizer(scratch.write("tokenizer.json", other.to_text())));
  EXPECT_THROW(is_byte_tokenizer(scratch.write("tokenizer.json", "{torn")), InvalidArgument);
}

}  // namespace
}  // namespace faultline
