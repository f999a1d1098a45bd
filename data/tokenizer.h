#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/token_store.h"

namespace faultline {

// The id of a byte is its value; byte 0, which no text holds, ends a document.
class ByteTokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;
  static constexpr int32_t kEndOfDocument = 0;

  // One id a byte, without the end of the document. Throws InvalidArgument on a byte 0.
  std::vector<int32_t> encode(std::string_view text) const;

  // The bytes of the ids up to the first end of a document. Throws InvalidArgument on an id that is
  // no byte. The bytes need not be valid UTF-8.
  std::string decode(std::span<const int32_t> ids) const;

  // All documents of a corpus, each followed by its end.
  TokenStore tokenize(const Corpus& corpus) const;
};

}  // namespace faultline
