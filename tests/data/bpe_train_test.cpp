#include "data/bpe_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/error.h"
#include "tests/data/tokenizer_golden.h"

namespace faultline {
namespace {

using testing::HasSubstr;

std::vector<std::string> merges_of(const BpeTokenizer& tokenizer) {
  const BpeDefinition& definition = tokenizer.definition();
  std::vector<std::string> merges;
  for (const BpeMerge& merge : definition.merges) {
    merges.push_back(definition.tokens[static_cast<size_t>(merge.left)] + " " +
                     definition.tokens[static_cast<size_t>(merge.right)]);
  }
  return merges;
}

TEST(BpeTraining, LearnsWhatHuggingFaceLearns) {
  const std::vector<std::string> texts = {TokenizerGolden().file.at("training_text").text()};
  const BpeTokenizer golden = BpeTokenizer::load(golden_path("tokenizer_gpt2.json"));
  const BpeTokenizer ours =
      train_bpe(texts, {.vocab_size = 1000, .special_tokens = {"<|endoftext|>"}});
  EXPECT_EQ(ours.definition().tokens, golden.definition().tokens);
  EXPECT_EQ(merges_of(ours), merges_of(golden));
  EXPECT_EQ(ours.end_of_document(), 0);

  const BpeTokenizer llama = BpeTokenizer::load(golden_path("tokenizer_llama3.json"));
  EXPECT_EQ(
      merges_of(train_bpe(texts, {.vocab_size = 900, .patterns = {std::string(kLlama3Pattern)}})),
      merges_of(llama));
}

// Counts: "ab" 3, "bc" 2, "ca" 2. After ab the pairs (ab)c 2 and c(ab) 2 are equal; c has the lower
// id.
TEST(BpeTraining, BreaksTiesByTheLowerIds) {
  const std::vector<std::string> texts = {"abcabcab"};
  EXPECT_EQ(merges_of(train_bpe(texts, {.vocab_size = 258})),
            (std::vector<std::string>{"a b", "c ab"}));
}

TEST(BpeTraining, StopsWhenNoPairIsLeftOrOftenEnough) {
  const std::vector<std::string> texts = {"aa aa bb"};
  // Pieces: "aa" once, " aa" once, " bb" once.
  EXPECT_EQ(train_bpe(texts, {.vocab_size = 5000}).vocab_size(), 256 + 4);
  EXPECT_EQ(merges_of(train_bpe(texts, {.vocab_size = 5000, .min_frequency = 2})),
            (std::vector<std::string>{"a a"}));
  EXPECT_EQ(train_bpe({}, {.vocab_size = 5000}).vocab_size(), 256);
}

// For tests/interop/run.py, which opens the files: each tokenizer of a folder saved anew, and
// learned anew from a folder of texts.
TEST(TokenizerWorker, SavesAndLearns) {
  const char* given = std::getenv("TOKENIZERS");
  if (given == nullptr) GTEST_SKIP();
  const std::filesystem::path out = std::getenv("TOKENIZERS_OUT");
  std::set<std::filesystem::path> files;  // in the order in which Hugging Face was given them
  for (const auto& file : std::filesystem::directory_iterator(std::getenv("TOKENIZER_TEXTS"))) {
    files.insert(file.path());
  }
  std::vector<std::string> texts;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  for (const auto& folder : std::filesystem::directory_iterator(given)) {
    const std::string name = folder.path().filename();
    for (const char* how : {"saved", "learned"})
      std::filesystem::create_directories(out / how / name);
    const BpeTokenizer loaded = BpeTokenizer::load(folder.path());
    loaded.save(out / "saved" / name / "tokenizer.json");
    const bool llama = name == "llama3";
    train_bpe(texts, {.vocab_size = loaded.vocab_size(),
                      .special_tokens = {"<|endoftext|>", "<|begin|>"},
                      .patterns = {std::string(llama ? kLlama3Pattern : kGpt2Pattern)}})
        .save(out / "learned" / name / "tokenizer.json");
  }
}

TEST(BpeTraining, RefusesWhatCannotBeTrained) {
  const std::vector<std::string> texts = {"text"};
  EXPECT_THAT(error_of<InvalidArgument>([&] { train_bpe(texts, {.vocab_size = 255}); }),
              HasSubstr("256"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                train_bpe(texts, {.vocab_size = 256, .special_tokens = {"<|endoftext|>"}});
              }),
              HasSubstr("257"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                train_bpe(texts, {.vocab_size = 300, .special_tokens = {"<x>", "<x>"}});
              }),
              HasSubstr("<x>"));
  const std::vector<std::string> invalid = {"a\xFF"};
  EXPECT_THAT(error_of<InvalidArgument>([&] { train_bpe(invalid, {.vocab_size = 300}); }),
              HasSubstr("byte 1"));
}

RC_GTEST_PROP(BpeTraining, GivesATokenizerThatLoadsAndDecodes, ()) {
  const auto letter = rc::gen::element('a', 'b', ' ', '\n', '1', '\'', 's');
  const auto texts =
      *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(letter));
  const BpeTokenizer trained = train_bpe(texts, {.vocab_size = 300, .special_tokens = {"<x>"}});
  const ScratchDirectory scratch;
  trained.save(scratch / "tokenizer.json");
  const BpeTokenizer loaded = BpeTokenizer::load(scratch / "tokenizer.json");
  for (const std::string& text : texts) {
    RC_ASSERT(trained.decode(trained.encode(text)) == text);
    RC_ASSERT(loaded.encode(text) == trained.encode(text));
  }
}

}  // namespace
}  // namespace faultline
