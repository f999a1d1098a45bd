#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <limits>

#include "core/error.h"
#include "data/token_store.h"
#include "data/tokenizer.h"
#include "io/checksum.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

TokenStore store_of(const std::vector<std::vector<int32_t>>& documents, int64_t vocab_size,
                    int32_t end_token) {
  TokenStoreBuilder builder(vocab_size, end_token);
  for (const auto& document : documents) builder.add_document(document);
  return builder.finish();
}

void expect_equal(const TokenStore& a, const TokenStore& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(a.documents(), b.documents());
  EXPECT_EQ(a.vocab_size(), b.vocab_size());
  EXPECT_EQ(a.end_token(), b.end_token());
  EXPECT_EQ(a.checksum(), b.checksum());
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << i;
  for (int64_t d = 0; d <= a.documents(); ++d) EXPECT_EQ(a.document_start(d), b.document_start(d));
}

RC_GTEST_PROP(ByteTokenizer, DecodesWhatItEncodes, (std::string text)) {
  std::erase(text, '\0');
  const ByteTokenizer tokenizer;
  RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
}

TEST(ByteTokenizer, StopsAtTheEndOfADocument) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 255, 0, 'b'}), "a\xFF");
  EXPECT_EQ(tokenizer.decode({}), "");
  EXPECT_THAT(error_of<InvalidArgument>([&] { tokenizer.decode(std::vector<int32_t>{256}); }),
              HasSubstr("id 256"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { tokenizer.decode(std::vector<int32_t>{-1}); }),
              HasSubstr("id -1"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { tokenizer.encode(std::string_view("ab\0", 3)); }),
              HasSubstr("byte 2"));
}

TEST(TokenStore, EndsEachDocumentOfACorpus) {
  const TokenStore store = ByteTokenizer().tokenize(corpus_of({"ab", "c"}));
  const std::vector<int32_t> expected = {'a', 'b', 0, 'c', 0};
  ASSERT_EQ(store.size(), 5);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(store[i], expected[i]);
  EXPECT_EQ(store.documents(), 2);
  EXPECT_EQ(store.document_start(1), 3);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(store.document_of(i), i < 3 ? 0 : 1);
}

RC_GTEST_PROP(TokenStore, FileGivesBackWhatWasWritten, ()) {
  const auto vocab_size = *rc::gen::element<int64_t>(2, 3, 255, 256, 257, 65535, 65536, 65537,
                                                     128256, TokenStore::kLargestVocabulary);
  const auto end_token = static_cast<int32_t>(*rc::gen::inRange<int64_t>(0, vocab_size));
  // The last id often: it is the first that a width too narrow would cut.
  const auto other = [=](int64_t x) { return static_cast<int32_t>(x < end_token ? x : x + 1); };
  const auto id = rc::gen::map(rc::gen::oneOf(rc::gen::inRange<int64_t>(0, vocab_size - 1),
                                              rc::gen::just<int64_t>(vocab_size - 2)),
                               other);
  const auto documents = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::vector<int32_t>>>(
      rc::gen::container<std::vector<int32_t>>(id)));
  const TokenStore store = store_of(documents, vocab_size, end_token);
  int64_t at = 0;
  for (const auto& document : documents) {
    for (const int32_t wanted : document) RC_ASSERT(store[at++] == wanted);
    RC_ASSERT(store[at++] == end_token);
  }
  RC_ASSERT(store.size() == at);
  std::vector<int32_t> all(static_cast<size_t>(at));
  store.read(0, all);
  for (int64_t i = 0; i < at; ++i) RC_ASSERT(all[static_cast<size_t>(i)] == store[i]);

  const ScratchDirectory scratch;
  store.write(scratch / "tokens");
  expect_equal(store, TokenStore::open(scratch / "tokens"));
  RC_ASSERT(scratch.names() == std::vector<std::string>{"tokens"});
}

TEST(TokenStore, RefusesIdsThatAreNone) {
  TokenStoreBuilder builder(300, 7);
  for (const int32_t bad : {-1, 300, 7}) {
    EXPECT_THAT(error_of<InvalidArgument>([&] {
                  builder.add_document(std::vector<int32_t>{1, bad});
                }),
                HasSubstr(std::to_string(bad)));
  }
  EXPECT_THAT(error_of<InvalidArgument>([&] { builder.finish(); }), HasSubstr("no document"));
  // One id more would not be an int32.
  const int64_t most = TokenStore::kLargestVocabulary;
  EXPECT_EQ(most - 1, std::numeric_limits<int32_t>::max());
  EXPECT_NO_THROW(TokenStoreBuilder(most, 0));
  EXPECT_THAT(error_of<InvalidArgument>([&] { TokenStoreBuilder(most + 1, 0); }),
              AllOf(HasSubstr("2147483649 ids was given"), HasSubstr("2 to 2147483648")));
  EXPECT_THROW(TokenStoreBuilder(1, 0), InvalidArgument);
  EXPECT_THROW(TokenStoreBuilder(256, 256), InvalidArgument);
}

TEST(TokenStore, RefusesEveryFlippedBitAndEveryLength) {
  const ScratchDirectory scratch;
  for (const int64_t vocab_size : {256, 300, 128256}) {
    store_of({{1, 2, 3}, {}, {4}}, vocab_size, 0).write(scratch / "tokens");
    const std::string good = content_of(scratch / "tokens");
    for (size_t i = 0; i < good.size() * 8; ++i) {
      std::string bad = good;
      bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
      const std::string path = scratch.write("bad", bad);
      EXPECT_THAT(error_of<InvalidArgument>([&] { TokenStore::open(path); }), HasSubstr(path))
          << "bit " << i;
    }
    for (size_t length = 0; length < good.size(); ++length) {
      const std::string path = scratch.write("bad", good.substr(0, length));
      EXPECT_THROW(TokenStore::open(path), InvalidArgument) << length;
    }
    EXPECT_THROW(TokenStore::open(scratch.write("bad", good + "x")), InvalidArgument);
  }
}

TEST(TokenStore, HoldsTheIdsOfLlama3) {
  // 128,256 ids: the last one and the end of a text, 128001, need more than 16 bits.
  const TokenStore store = store_of({{0, 65535, 65536, 128255}, {128000}}, 128256, 128001);
  const ScratchDirectory scratch;
  store.write(scratch / "tokens");
  // A header of 64 bytes, 3 starts, 7 tokens of 4 bytes.
  EXPECT_EQ(content_of(scratch / "tokens").size(), 64u + 3 * 8 + 7 * 4);
  const TokenStore back = TokenStore::open(scratch / "tokens");
  expect_equal(store, back);
  const std::vector<int32_t> expected = {0, 65535, 65536, 128255, 128001, 128000, 128001};
  ASSERT_EQ(back.size(), 7);
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(back[i], expected[i]) << i;

  TokenStoreBuilder builder(128256, 128001);
  EXPECT_THAT(
      error_of<InvalidArgument>([&] { builder.add_document(std::vector<int32_t>{128256}); }),
      HasSubstr("id 128256 is outside the vocabulary of 128256 ids, 0 to 128255"));
}

// The file with something else at `offset` and checksums that agree with it, as a program with
// another idea of the format would write it.
template <class T>
std::string rewritten(std::string file, size_t offset, T value) {
  std::memcpy(file.data() + offset, &value, sizeof value);
  const auto seal = [&file](size_t at, std::string_view part) {
    const uint64_t sum = xxh64(part);
    std::memcpy(file.data() + at, &sum, sizeof sum);
  };
  seal(48, std::string_view(file).substr(64));
  seal(56, std::string_view(file).substr(0, 56));
  return file;
}

TEST(TokenStore, RefusesIdsOutsideTheVocabularyOfEveryWidth) {
  const ScratchDirectory scratch;
  const auto refusal_of = [&](int64_t vocab_size, auto id) {
    store_of({{1, 1}}, vocab_size, 0).write(scratch / "tokens");
    // The second token, behind the header and two starts.
    const std::string bad = rewritten(content_of(scratch / "tokens"), 64 + 16 + sizeof id, id);
    const std::string path = scratch.write("bad", bad);
    return error_of<InvalidArgument>([&] { TokenStore::open(path); });
  };
  EXPECT_THAT(refusal_of(200, uint8_t{200}), HasSubstr("token 1 is 200"));
  EXPECT_THAT(refusal_of(300, uint16_t{300}), HasSubstr("token 1 is 300"));
  EXPECT_THAT(refusal_of(128256, uint32_t{128256}), HasSubstr("token 1 is 128256"));
  // As an int32 it is negative, and below any vocabulary's size.
  EXPECT_THAT(refusal_of(128256, uint32_t{0x80000000}), HasSubstr("token 1 is 2147483648"));
}

TEST(TokenStore, RefusesAHeaderThatContradictsItself) {
  const ScratchDirectory scratch;
  const auto refusal_of = [&](int64_t vocab_size, size_t offset, auto value) {
    store_of({{1, 1}}, vocab_size, 0).write(scratch / "tokens");
    const std::string path =
        scratch.write("bad", rewritten(content_of(scratch / "tokens"), offset, value));
    return error_of<InvalidArgument>([&] { TokenStore::open(path); });
  };
  for (const uint32_t width : {0, 1, 2, 3, 8}) {
    EXPECT_THAT(refusal_of(128256, 12, width), HasSubstr("its ids take 4 bytes each"));
  }
  EXPECT_THAT(refusal_of(300, 12, uint32_t{4}), HasSubstr("its ids take 2 bytes each"));
  EXPECT_THAT(refusal_of(128256, 24, uint64_t{128256}), HasSubstr("end token 128256"));
  EXPECT_THAT(refusal_of(128256, 16, uint64_t{2147483649}), HasSubstr("2147483649 ids"));
  EXPECT_THAT(refusal_of(128256, 16, ~uint64_t{0}), HasSubstr("18446744073709551615 ids"));
}

TEST(TokenStore, NamesWhatCannotBeRead) {
  const ScratchDirectory scratch;
  EXPECT_THAT(error_of<IoError>([&] { TokenStore::open(scratch / "none"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { TokenStore::open(scratch.path()); }),
              HasSubstr("this is no file"));
}

TEST(TokenStore, LeavesNothingBehindOnAFullDisk) {
  const ScratchDirectory scratch;
  scratch.write("tokens", "what was there");
  const TokenStore store = store_of({std::vector<int32_t>(100'000, 1)}, 256, 0);
  {
    const FullDisk full(4096);
    EXPECT_THAT(error_of<IoError>([&] { store.write(scratch / "tokens"); }),
                HasSubstr("tokens: File too large"));
  }
  EXPECT_THAT(error_of<IoError>([&] { store.write(scratch / "no/such/folder"); }),
              HasSubstr("No such file"));
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"tokens"});
  EXPECT_EQ(content_of(scratch / "tokens"), "what was there");
}

}  // namespace
}  // namespace faultline
