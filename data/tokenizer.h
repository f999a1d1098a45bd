#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/token_store.h"

namespace faultline {

// Text to ids and back. Immutable once made, so any thread may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are 0 to vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;

  // The id that ends a document, where one is known.
  virtual std::optional<int32_t> end_of_document() const = 0;

  // The ids of a text, and nothing around them.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // The same with what the tokenizer puts around a text that begins a context, such as Llama's
  // begin-of-text. By default nothing.
  virtual std::vector<int32_t> encode_prompt(std::string_view text) const { return encode(text); }

  // The bytes that an id stands for; they may be a part of a character. Valid while the tokenizer
  // lives. Throws InvalidArgument on an id outside the vocabulary.
  virtual std::string_view bytes_of(int32_t id) const = 0;

  // Whether the id marks something (a document's end, a role in a chat) rather than text.
  virtual bool is_special(int32_t id) const = 0;

  // The bytes of the ids, one after the other. They need not be valid UTF-8.
  virtual std::string decode(std::span<const int32_t> ids) const;

  // All documents of a corpus, each followed by its end. Throws InvalidArgument when the tokenizer
  // has no end of a document.
  TokenStore tokenize(const Corpus& corpus) const;
};

// The id of a byte is its value; byte 0, which no text holds, ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;
  static constexpr int32_t kEndOfDocument = 0;

  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> end_of_document() const override { return kEndOfDocument; }

  // One id a byte, without the end of the document. Throws InvalidArgument on a byte 0.
  std::vector<int32_t> encode(std::string_view text) const override;

  std::string_view bytes_of(int32_t id) const override;
  bool is_special(int32_t id) const override { return id == kEndOfDocument; }

  // The bytes of the ids up to the first end of a document. Throws InvalidArgument on an id that is
  // no byte. The bytes need not be valid UTF-8.
  std::string decode(std::span<const int32_t> ids) const override;
};

}  // namespace faultline
