#include "data/tokenizer.h"

#include <array>

#include "core/error.h"

namespace faultline {
namespace {

constexpr auto kBytes = [] {
  std::array<char, ByteTokenizer::kVocabSize> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += bytes_of(id);
  return text;
}

TokenStore Tokenizer::tokenize(const Corpus& corpus) const {
  const std::optional<int32_t> end = end_of_document();
  require(end.has_value(),
          "tokenizer: no id is known that ends a document, so documents cannot be kept apart; name "
          "it (eos_token_id)");
  TokenStoreBuilder builder(vocab_size(), *end);
  for (const std::string& document : corpus.documents) builder.add_document(encode(document));
  return builder.finish();
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    require(c != '\0', "tokenizer: byte {} of the text is 0, which ends a document; remove it",
            ids.size());
    ids.push_back(static_cast<uint8_t>(c));
  }
  return ids;
}

std::string_view ByteTokenizer::bytes_of(int32_t id) const {
  require(id >= 0 && id < kVocabSize, "tokenizer: id {} is no byte (0 to 255)", id);
  return {&kBytes[static_cast<size_t>(id)], id == kEndOfDocument ? size_t{0} : size_t{1}};
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const std::string_view byte = bytes_of(id);
    if (id == kEndOfDocument) break;
    text += byte;
  }
  return text;
}

}  // namespace faultline
