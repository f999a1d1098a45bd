#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "data/token_store.h"
#include "data/tokenizer.h"
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
  const auto vocab_size = *rc::gen::element<int64_t>(2, 3, 255, 256, 257, 65535, 65536);
  const auto end_token = *rc::gen::inRange<int32_t>(0, static_cast<int32_t>(vocab_size));
  const auto id = rc::gen::map(rc::gen::inRange<int32_t>(0, static_cast<int32_t>(vocab_size) - 1),
                               [=](int32_t x) { return x < end_token ? x : x + 1; });
  const auto documents = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::vector<int32_t>>>(
      rc::gen::container<std::vector<int32_t>>(id)));
  const TokenStore store = store_of(documents, vocab_size, end_token);
  int64_t at = 0;
  for (const auto& document : documents) {
    for (const int32_t wanted : document) RC_ASSERT(store[at++] == wanted);
    RC_ASSERT(store[at++] == end_token);
  }
  RC_ASSERT(store.size() == at);

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
  EXPECT_THROW(TokenStoreBuilder(65537, 0), InvalidArgument);
  EXPECT_THROW(TokenStoreBuilder(1, 0), InvalidArgument);
  EXPECT_THROW(TokenStoreBuilder(256, 256), InvalidArgument);
}

TEST(TokenStore, RefusesEveryFlippedBitAndEveryLength) {
  const ScratchDirectory scratch;
  for (const int64_t vocab_size : {256, 300}) {
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
