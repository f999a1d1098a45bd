#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace faultline {

// The tokens of all documents in one row, each document followed by the end token, and where each
// begins. Either a read-only memory-mapped file or memory of its own; copies share it. Immutable,
// so any thread may read.
//
// File, little-endian: a header of 64 bytes (magic "FLTOKENS", version u32, bytes per token u32,
// vocabulary, end token, tokens, documents, XXH64 of what follows, XXH64 of the header so far, each
// u64), documents + 1 starts (u64), the tokens (u8 for up to 256 ids, u16 for up to 65,536, else
// u32). Nothing else.
class TokenStore {
 public:
  // Ids are int32 everywhere, from 0 on.
  static constexpr int64_t kLargestVocabulary = int64_t{1} << 31;

  // The narrowest width that holds every id of a vocabulary: 1, 2 or 4 bytes.
  static constexpr uint32_t bytes_per_token(int64_t vocab_size) {
    if (vocab_size <= 1 << 8) return 1;
    return vocab_size <= 1 << 16 ? 2 : 4;
  }

  // Maps the file and checks its layout and checksums, which reads it once. Throws IoError when it
  // cannot be read, InvalidArgument naming the file when it is not a whole, undamaged token store.
  static TokenStore open(const std::string& path);

  // Writes the file under a temporary name and renames it, so that `path` never holds a part.
  // Throws IoError and leaves nothing behind when that fails.
  void write(const std::string& path) const;

  int64_t vocab_size() const { return vocab_size_; }
  int32_t end_token() const { return end_token_; }

  // Tokens, end tokens included.
  int64_t size() const { return starts_[documents_]; }
  // Unchecked: `i` is in [0, size()).
  int32_t operator[](int64_t i) const {
    if (bytes_per_token_ == 1) return reinterpret_cast<const uint8_t*>(tokens_)[i];
    if (bytes_per_token_ == 2) return reinterpret_cast<const uint16_t*>(tokens_)[i];
    return reinterpret_cast<const int32_t*>(tokens_)[i];
  }

  // Tokens begin, begin + 1, ... into `ids`, all of which are in [0, size()), unchecked. Faster
  // than one by one, as the width is looked at once.
  void read(int64_t begin, std::span<int32_t> ids) const;

  int64_t documents() const { return documents_; }
  // Place of the first token of document `d` in [0, documents()]; the last is size().
  int64_t document_start(int64_t d) const { return starts_[d]; }
  // The document that holds token `i`.
  int64_t document_of(int64_t i) const;

  // Identifies tokens and borders: XXH64 of what follows the header in a file.
  uint64_t checksum() const { return checksum_; }

 private:
  friend class TokenStoreBuilder;
  TokenStore() = default;
  std::span<const std::byte> start_bytes() const;
  std::span<const std::byte> token_bytes() const;
  uint64_t compute_checksum() const;
  void check_documents(const std::string& path) const;

  std::shared_ptr<const void> memory_;  // owns what the pointers below point to
  const std::byte* tokens_ = nullptr;
  const int64_t* starts_ = nullptr;
  int64_t documents_ = 0;
  int64_t vocab_size_ = 0;
  int32_t end_token_ = 0;
  uint32_t bytes_per_token_ = 1;
  uint64_t checksum_ = 0;
};

// Collects documents into a TokenStore in memory.
class TokenStoreBuilder {
 public:
  // Throws InvalidArgument unless 2 <= vocab_size <= kLargestVocabulary (2,147,483,648) and the end
  // token is one of the ids.
  TokenStoreBuilder(int64_t vocab_size, int32_t end_token);

  // Appends the ids and the end token. Throws InvalidArgument, and adds nothing, when an id is
  // outside the vocabulary or is the end token.
  void add_document(std::span<const int32_t> ids);

  // Throws InvalidArgument when there is no document. The builder is empty afterwards.
  TokenStore finish();

 private:
  struct Memory {
    std::vector<uint8_t> narrow;
    std::vector<uint16_t> wide;
    std::vector<int32_t> widest;
    std::vector<int64_t> starts{0};
  };
  void push(int32_t id);

  int64_t vocab_size_;
  int32_t end_token_;
  Memory memory_;
};

}  // namespace faultline
