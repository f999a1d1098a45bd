#include "data/tokenizer.h"

#include "core/error.h"

namespace faultline {

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

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    require(id >= 0 && id < kVocabSize, "tokenizer: id {} is no byte (0 to 255)", id);
    if (id == kEndOfDocument) break;
    text.push_back(static_cast<char>(id));
  }
  return text;
}

TokenStore ByteTokenizer::tokenize(const Corpus& corpus) const {
  TokenStoreBuilder builder(kVocabSize, kEndOfDocument);
  for (const std::string& document : corpus.documents) builder.add_document(encode(document));
  return builder.finish();
}

}  // namespace faultline
