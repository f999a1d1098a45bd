#include "data/token_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace faultline {

static_assert(std::endian::native == std::endian::little, "token stores are little-endian");

std::span<const std::byte> TokenStore::start_bytes() const {
  return std::as_bytes(std::span(starts_, static_cast<size_t>(documents_ + 1)));
}

std::span<const std::byte> TokenStore::token_bytes() const {
  return {tokens_, static_cast<size_t>(size()) * bytes_per_token_};
}

uint64_t TokenStore::compute_checksum() const {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  for (const auto part : {start_bytes(), token_bytes()}) {
    XXH64_update(&state, part.data(), part.size());
  }
  return XXH64_digest(&state);
}

void TokenStore::read(int64_t begin, std::span<int32_t> ids) const {
  const auto copy = [&]<class T>(const T* tokens) {
    std::copy_n(tokens + begin, ids.size(), ids.begin());
  };
  if (bytes_per_token_ == 1) return copy(reinterpret_cast<const uint8_t*>(tokens_));
  if (bytes_per_token_ == 2) return copy(reinterpret_cast<const uint16_t*>(tokens_));
  copy(reinterpret_cast<const int32_t*>(tokens_));
}

int64_t TokenStore::document_of(int64_t i) const {
  return std::upper_bound(starts_, starts_ + documents_ + 1, i) - starts_ - 1;
}

TokenStoreBuilder::TokenStoreBuilder(int64_t vocab_size, int32_t end_token)
    : vocab_size_(vocab_size), end_token_(end_token) {
  require(vocab_size >= 2 && vocab_size <= TokenStore::kLargestVocabulary,
          "token store: a vocabulary of {} ids was given; it takes 2 to {}, so that every id is an "
          "int32 from 0 on",
          vocab_size, TokenStore::kLargestVocabulary);
  require(end_token >= 0 && end_token < vocab_size,
          "token store: the end token {} is outside the vocabulary of {} ids", end_token,
          vocab_size);
}

void TokenStoreBuilder::push(int32_t id) {
  switch (TokenStore::bytes_per_token(vocab_size_)) {
    case 1:
      return memory_.narrow.push_back(static_cast<uint8_t>(id));
    case 2:
      return memory_.wide.push_back(static_cast<uint16_t>(id));
    default:
      return memory_.widest.push_back(id);
  }
}

void TokenStoreBuilder::add_document(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    require(id >= 0 && id < vocab_size_,
            "token store: id {} is outside the vocabulary of {} ids, 0 to {}", id, vocab_size_,
            vocab_size_ - 1);
    require(id != end_token_, "token store: a document holds the id {}, which ends documents", id);
  }
  for (const int32_t id : ids) push(id);
  push(end_token_);
  memory_.starts.push_back(memory_.starts.back() + static_cast<int64_t>(ids.size()) + 1);
}

TokenStore TokenStoreBuilder::finish() {
  require(memory_.starts.size() > 1, "token store: there is no document in it");
  auto memory = std::make_shared<const Memory>(std::exchange(memory_, {}));
  TokenStore store;
  store.vocab_size_ = vocab_size_;
  store.end_token_ = end_token_;
  store.documents_ = static_cast<int64_t>(memory->starts.size()) - 1;
  store.starts_ = memory->starts.data();
  store.bytes_per_token_ = TokenStore::bytes_per_token(vocab_size_);
  const std::span<const std::byte> tokens[] = {std::as_bytes(std::span(memory->narrow)),
                                               std::as_bytes(std::span(memory->wide)),
                                               std::as_bytes(std::span(memory->widest))};
  store.tokens_ = tokens[store.bytes_per_token_ / 2].data();
  store.memory_ = std::move(memory);
  store.checksum_ = store.compute_checksum();
  return store;
}

}  // namespace faultline
