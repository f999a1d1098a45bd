#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "core/context.h"
#include "data/tokenizer.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One document of the ids 1, 2, 3, ...: a token says where it stands.
TokenStore counting(int32_t tokens) {
  TokenStoreBuilder builder(65536, 0);
  std::vector<int32_t> ids;
  for (int32_t i = 1; i < tokens; ++i) ids.push_back(i);
  builder.add_document(ids);
  return builder.finish();
}

TokenStore letters(const std::vector<std::string>& documents) {
  return ByteTokenizer().tokenize(corpus_of(documents));
}

TokenRange all_of(const TokenStore& store) { return {0, store.size()}; }

std::vector<int32_t> row_of(const Tensor& tensor, int64_t row) {
  const std::vector<int32_t> all = tensor.to_vector<int32_t>();
  const int64_t width = tensor.size(1);
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.inputs.to_vector<int32_t>(), b.inputs.to_vector<int32_t>());
  EXPECT_EQ(a.labels.to_vector<int32_t>(), b.labels.to_vector<int32_t>());
  EXPECT_EQ(a.documents.to_vector<int32_t>(), b.documents.to_vector<int32_t>());
  ASSERT_EQ(a.key_valid.defined(), b.key_valid.defined());
  if (a.key_valid.defined()) {
    EXPECT_EQ(a.key_valid.to_vector<int32_t>(), b.key_valid.to_vector<int32_t>());
  }
  EXPECT_EQ(a.valid_tokens, b.valid_tokens);
}

TEST(Labels, AreTheNextTokenAndStopAtADocumentsEnd) {
  const std::vector<int32_t> tokens = {'a', 'b', 0, 'c', 0, 0, 'd'};
  EXPECT_THAT(LabelSeam::standard({tokens, 7, 0}), ElementsAre('b', 0, -1, 0, -1, -1));
  EXPECT_THAT(LabelSeam::standard({tokens, 4, 0}), ElementsAre('b', 0, -1, -1, -1, -1));
  EXPECT_THAT(LabelSeam::standard({tokens, 1, 0}), ElementsAre(-1, -1, -1, -1, -1, -1));
}

TEST(Labels, GoThroughTheSeamOnceARow) {
  const TokenStore store = counting(40);
  Sampler sampler(store, all_of(store), {.seq_len = 4, .batch_size = 3});
  int calls = 0;
  const auto guard = Context::current().seams.replace<LabelSeam>([&](const TokenRow& row) {
    ++calls;
    return std::vector<int32_t>(row.tokens.begin(), row.tokens.end() - 1);
  });
  const Batch batch = sampler.batch();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(batch.labels.to_vector<int32_t>(), batch.inputs.to_vector<int32_t>());
}

TEST(Labels, OfTheWrongNumberAreRefused) {
  const TokenStore store = counting(40);
  Sampler sampler(store, all_of(store), {.seq_len = 4, .batch_size = 1});
  const auto guard = Context::current().seams.replace<LabelSeam>(
      [](const TokenRow&) { return std::vector<int32_t>(5); });
  EXPECT_THAT(error_of<InvalidArgument>([&] { sampler.batch(); }),
              HasSubstr("5 labels were made for 4 positions"));
}

TEST(Batch, NumbersTheDocumentsWithinItsRows) {
  const TokenStore store = letters({"ab", "c", "def"});  // a b 0 c 0 d e f 0
  const Evaluation evaluation(store, all_of(store), 4, 2);
  ASSERT_EQ(evaluation.batches(), 1);
  const Batch batch = evaluation.batch(0);
  EXPECT_THAT(row_of(batch.inputs, 0), ElementsAre('a', 'b', 0, 'c'));
  EXPECT_THAT(row_of(batch.labels, 0), ElementsAre('b', 0, -1, 0));
  EXPECT_THAT(row_of(batch.documents, 0), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(row_of(batch.inputs, 1), ElementsAre(0, 'd', 'e', 'f'));
  EXPECT_THAT(row_of(batch.labels, 1), ElementsAre(-1, 'e', 'f', 0));
  EXPECT_THAT(row_of(batch.documents, 1), ElementsAre(0, 1, 1, 1));
  EXPECT_FALSE(batch.key_valid.defined());
  EXPECT_EQ(batch.valid_tokens, 6);
  EXPECT_EQ(batch.inputs.dtype(), DType::i32);
  EXPECT_EQ(batch.labels.dtype(), DType::i32);
}

// Every window of an epoch comes once: the rows tile the text from the epoch's offset.
RC_GTEST_PROP(Sampler, TakesEveryWindowOncePerEpoch, ()) {
  const auto seq_len = *rc::gen::inRange<int32_t>(1, 12);
  const auto tokens = *rc::gen::inRange<int32_t>(seq_len + 1, 200);
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const TokenStore store = counting(tokens);
  Sampler sampler(store, all_of(store), {.seq_len = seq_len, .batch_size = 1, .seed = seed});
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int32_t> starts;
    while (sampler.epoch() == epoch) {
      const Batch batch = sampler.batch();
      const std::vector<int32_t> row = row_of(batch.inputs, 0);
      for (size_t t = 0; t < row.size(); ++t) RC_ASSERT(row[t] == row[0] + static_cast<int32_t>(t));
      RC_ASSERT(starts.insert(row[0]).second);
      RC_ASSERT(!batch.key_valid.defined());
      sampler.advance();
    }
    RC_ASSERT(!starts.empty());
    const int32_t offset = *starts.begin() - 1;
    RC_ASSERT(offset < seq_len);
    const int32_t windows = (tokens - 1 - offset) / seq_len;
    RC_ASSERT(static_cast<int32_t>(starts.size()) == windows);
    RC_ASSERT(*starts.rbegin() == 1 + offset + (windows - 1) * seq_len);
  }
}

TEST(Sampler, ShufflesEachEpochAndEachSeedAnew) {
  const TokenStore store = counting(1000);
  const auto first_rows = [&](uint64_t seed) {
    std::vector<std::vector<int32_t>> epochs(2);
    Sampler sampler(store, all_of(store), {.seq_len = 10, .batch_size = 1, .seed = seed});
    for (; sampler.epoch() < 2; sampler.advance()) {
      epochs[sampler.epoch()].push_back((row_of(sampler.batch().inputs, 0)[0] - 1) / 10);
    }
    return epochs;
  };
  const auto one = first_rows(1);
  EXPECT_EQ(one, first_rows(1));
  EXPECT_NE(one, first_rows(2));
  EXPECT_NE(one[0], one[1]);
  EXPECT_FALSE(std::is_sorted(one[0].begin(), one[0].end()));
}

// Places are drawn evenly: over many seeds each of 5 windows is first about equally often. The
// number of hits is binomial(2000, 1/5): 400 +- 18; five of these is a chance below 1e-6.
TEST(Sampler, ShufflesEvenly) {
  const TokenStore store = counting(6);
  std::map<int32_t, int> hits;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Sampler sampler(store, all_of(store), {.seq_len = 1, .batch_size = 1, .seed = seed});
    ++hits[row_of(sampler.batch().inputs, 0)[0]];
  }
  ASSERT_EQ(hits.size(), 5u);
  for (const auto& [start, count] : hits) EXPECT_NEAR(count, 400, 90) << start;
}

RC_GTEST_PROP(Sampler, PartsOfAStepAreTheRowsOfTheWhole, ()) {
  const auto batch_size = *rc::gen::inRange<int64_t>(1, 9);
  const auto packing = *rc::gen::element(Packing::packed, Packing::padded);
  const TokenStore store = letters({"hello", "a", "wide wide world", "of text"});
  const SamplerOptions options{.seq_len = 5, .batch_size = batch_size, .packing = packing};
  Sampler whole(store, all_of(store), options);
  Sampler parts(store, all_of(store), options);
  for (int step = 0; step < 5; ++step, whole.advance(), parts.advance()) {
    const Batch all = whole.batch();
    int64_t valid_tokens = 0;
    for (int64_t b = batch_size - 1; b >= 0; --b) {  // in any order
      const Batch one = parts.batch(b, 1);
      RC_ASSERT(one.first_sequence == b);
      RC_ASSERT(row_of(one.inputs, 0) == row_of(all.inputs, b));
      RC_ASSERT(row_of(one.labels, 0) == row_of(all.labels, b));
      RC_ASSERT(row_of(one.documents, 0) == row_of(all.documents, b));
      valid_tokens += one.valid_tokens;
    }
    RC_ASSERT(valid_tokens == all.valid_tokens);
  }
}

RC_GTEST_PROP(Sampler, ResumedEqualsNeverStopping, ()) {
  const auto batch_size = *rc::gen::inRange<int64_t>(1, 7);
  const auto steps = *rc::gen::inRange(0, 20);
  const auto packing = *rc::gen::element(Packing::packed, Packing::padded);
  const TokenStore store = letters({"hello", "a", "wide wide world", "of text"});
  const SamplerOptions options{
      .seq_len = 3, .batch_size = batch_size, .seed = 5, .packing = packing};
  Sampler straight(store, all_of(store), options);
  for (int i = 0; i < steps; ++i) straight.advance();
  Sampler resumed(store, all_of(store), options);
  resumed.load_state(straight.state());
  for (int i = 0; i < 5; ++i) {
    expect_equal(resumed.batch(), straight.batch());
    resumed.advance();
    straight.advance();
  }
  RC_ASSERT(resumed.state().values == straight.state().values);
}

TEST(Sampler, RefusesAStateOfAnotherRun) {
  const TokenStore store = counting(100);
  const SamplerOptions options{.seq_len = 4, .batch_size = 2, .seed = 1};
  const State saved = Sampler(store, all_of(store), options).state();
  const auto refuse = [&](const TokenStore& data, SamplerOptions changed, const State& state) {
    Sampler sampler(data, all_of(data), changed);
    const State before = sampler.state();
    const std::string text = error_of<InvalidArgument>([&] { sampler.load_state(state); });
    EXPECT_EQ(sampler.state().values, before.values);
    return text;
  };
  EXPECT_THAT(refuse(counting(101), options, saved), HasSubstr("data"));
  EXPECT_THAT(refuse(store, {.seq_len = 4, .batch_size = 2, .seed = 2}, saved),
              HasSubstr("seed 1"));
  EXPECT_THAT(refuse(store, {.seq_len = 5, .batch_size = 2}, saved), HasSubstr("seq_len 4"));
  EXPECT_THAT(refuse(store, {.seq_len = 4, .batch_size = 2, .packing = Packing::padded}, saved),
              HasSubstr("packed"));
  State changed = saved;
  changed.set_integer("position", 1000);
  EXPECT_THAT(refuse(store, options, changed), HasSubstr("position 1000"));
  changed.set_integer("position", -1);
  EXPECT_THAT(refuse(store, options, changed), HasSubstr("negative"));
  EXPECT_THAT(refuse(store, options, State()), HasSubstr("no 'data'"));
}

TEST(PaddedSampler, BeginsAtADocumentAndPadsTheRest) {
  const TokenStore store = letters({"a", "bcd", "efghij"});
  Sampler sampler(store, all_of(store),
                  {.seq_len = 5, .batch_size = 3, .packing = Packing::padded});
  const Batch batch = sampler.batch();
  ASSERT_TRUE(batch.key_valid.defined());
  EXPECT_EQ(batch.key_valid.dtype(), DType::boolean);
  std::map<int32_t, int64_t> rows;
  for (int64_t b = 0; b < 3; ++b) rows[row_of(batch.inputs, b)[0]] = b;
  ASSERT_EQ(rows.size(), 3u);
  const auto labels = [&](char c) { return row_of(batch.labels, rows.at(c)); };
  const auto inputs = [&](char c) { return row_of(batch.inputs, rows.at(c)); };
  const auto valid = [&](char c) {
    const auto all = batch.key_valid.to_vector<int32_t>();
    return std::vector<int32_t>(all.begin() + rows.at(c) * 5, all.begin() + rows.at(c) * 5 + 5);
  };
  EXPECT_THAT(inputs('a'), ElementsAre('a', 0, 0, 0, 0));
  EXPECT_THAT(labels('a'), ElementsAre(0, -1, -1, -1, -1));
  EXPECT_THAT(valid('a'), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(inputs('b'), ElementsAre('b', 'c', 'd', 0, 0));
  EXPECT_THAT(labels('b'), ElementsAre('c', 'd', 0, -1, -1));
  EXPECT_THAT(valid('b'), ElementsAre(1, 1, 1, 1, 0));
  // Cut: the sixth token is a label only.
  EXPECT_THAT(inputs('e'), ElementsAre('e', 'f', 'g', 'h', 'i'));
  EXPECT_THAT(labels('e'), ElementsAre('f', 'g', 'h', 'i', 'j'));
  EXPECT_THAT(valid('e'), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_EQ(batch.valid_tokens, 9);
  EXPECT_EQ(batch.documents.to_vector<int32_t>(), std::vector<int32_t>(15, 0));
}

TEST(PaddedSampler, HasNoKeyMaskWhenEveryRowIsFull) {
  const TokenStore store = letters({"abc", "def"});  // exactly seq_len + 1, and seq_len, tokens
  for (const int64_t seq_len : {3, 4}) {
    Sampler sampler(store, all_of(store),
                    {.seq_len = seq_len, .batch_size = 2, .packing = Packing::padded});
    const Batch batch = sampler.batch();
    EXPECT_FALSE(batch.key_valid.defined());
    EXPECT_EQ(batch.valid_tokens, 6);
  }
}

TEST(PaddedSampler, PassesOverDocumentsWithoutALabel) {
  TokenStoreBuilder builder(256, 0);
  builder.add_document({});
  builder.add_document(std::vector<int32_t>{5});
  builder.add_document({});
  const TokenStore store = builder.finish();
  const SamplerOptions options{.seq_len = 3, .batch_size = 4, .packing = Packing::padded};
  Sampler sampler(store, all_of(store), options);
  const Batch batch = sampler.batch();  // four epochs of one document
  for (int64_t b = 0; b < 4; ++b) EXPECT_THAT(row_of(batch.inputs, b), ElementsAre(5, 0, 0));
  EXPECT_EQ(batch.valid_tokens, 4);
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                Sampler(store, {0, 1}, options);
              }),
              HasSubstr("two tokens"));
}

TEST(Sampler, RefusesImpossibleOptions) {
  const TokenStore store = counting(10);
  const auto text = [&](TokenRange range, SamplerOptions options) {
    return error_of<InvalidArgument>([&] { Sampler(store, range, options); });
  };
  EXPECT_THAT(text({0, 10}, {.seq_len = 0, .batch_size = 1}), HasSubstr("seq_len 0"));
  EXPECT_THAT(text({0, 10}, {.seq_len = 1, .batch_size = 0}), HasSubstr("batch_size 0"));
  EXPECT_THAT(text({0, 10}, {.seq_len = 10, .batch_size = 1}), HasSubstr("seq_len + 1 = 11"));
  EXPECT_THAT(text({0, 11}, {.seq_len = 2, .batch_size = 1}), HasSubstr("[0, 11)"));
  Sampler sampler(store, {0, 10}, {.seq_len = 9, .batch_size = 2});
  EXPECT_THAT(error_of<InvalidArgument>([&] { sampler.batch(1, 2); }), HasSubstr("[1, 3)"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { sampler.batch(-1, 1); }), HasSubstr("[-1, 0)"));
  EXPECT_EQ(row_of(sampler.batch().inputs, 1)[8], 9);
}

TEST(HeldOut, IsCutAtTheDocumentBorderNearestToNineTenths) {
  TokenStoreBuilder builder(256, 0);
  for (int i = 0; i < 50; ++i) builder.add_document(std::vector<int32_t>(19, 1));
  const DataSplit split = hold_out_last_tenth(builder.finish(), 8);
  EXPECT_EQ(split.training.begin, 0);
  EXPECT_EQ(split.training.end, 900);
  EXPECT_EQ(split.held_out.begin, 900);
  EXPECT_EQ(split.held_out.end, 1000);
}

TEST(HeldOut, IsCutInsideADocumentWhereNoBorderIsNear) {
  const DataSplit split = hold_out_last_tenth(counting(1000), 8);
  EXPECT_EQ(split.training.end, 900);
  EXPECT_EQ(split.held_out.size(), 100);
}

RC_GTEST_PROP(HeldOut, IsAboutATenthAndAtABorderIfOneIsNear, ()) {
  const auto lengths =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 60)));
  TokenStoreBuilder builder(256, 0);
  for (const int length : lengths) builder.add_document(std::vector<int32_t>(length, 1));
  const TokenStore store = builder.finish();
  const int64_t total = store.size();
  RC_PRE(total >= 40);
  const DataSplit split = hold_out_last_tenth(store, 4);
  RC_ASSERT(split.training.begin == 0 && split.training.end == split.held_out.begin);
  RC_ASSERT(split.held_out.end == total);
  RC_ASSERT(split.held_out.size() * 20 >= total - 20 && split.held_out.size() * 5 <= total);
  int64_t nearest = total;
  for (int64_t d = 0; d <= store.documents(); ++d) {
    nearest = std::min(nearest, std::abs(store.document_start(d) - (total - total / 10)));
  }
  if (nearest * 40 <= total) {
    RC_ASSERT(std::abs(split.training.end - (total - total / 10)) == nearest);
  }
}

TEST(HeldOut, SaysWhenTheTextIsTooShort) {
  const std::string text =
      error_of<InvalidArgument>([] { hold_out_last_tenth(letters({"abc"}), 32); });
  EXPECT_THAT(text, HasSubstr("4 tokens"));
  EXPECT_THAT(text, HasSubstr("at least 33"));
  EXPECT_NO_THROW(hold_out_last_tenth(counting(20), 17));
  EXPECT_THROW(hold_out_last_tenth(counting(20), 18), InvalidArgument);
}

TEST(HeldOut, IsNeverSampled) {
  const TokenStore store = counting(1000);
  const DataSplit split = hold_out_last_tenth(store, 16);
  Sampler sampler(store, split.training, {.seq_len = 16, .batch_size = 3});
  const auto border = static_cast<int32_t>(split.training.end);  // token i is i + 1
  for (; sampler.epoch() < 5; sampler.advance()) {
    const Batch batch = sampler.batch();
    for (const int32_t id : batch.inputs.to_vector<int32_t>()) ASSERT_LE(id, border);
    for (const int32_t id : batch.labels.to_vector<int32_t>()) ASSERT_LE(id, border);
  }
}

// Each token of the part that follows one of its own document is a label exactly once.
RC_GTEST_PROP(Evaluation, CountsEveryLabelOnce, ()) {
  const auto lengths =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 30)));
  const auto seq_len = *rc::gen::inRange<int64_t>(1, 20);
  const auto batch_size = *rc::gen::inRange<int64_t>(1, 5);
  TokenStoreBuilder builder(256, 0);
  for (const int length : lengths) builder.add_document(std::vector<int32_t>(length, 1));
  const TokenStore store = builder.finish();
  const Evaluation evaluation(store, all_of(store), seq_len, batch_size);
  int64_t labels = 0;
  int64_t ends = 0;
  for (int64_t i = 0; i < evaluation.batches(); ++i) {
    const Batch batch = evaluation.batch(i);
    expect_equal(batch, evaluation.batch(i));
    labels += batch.valid_tokens;
    for (const int32_t label : batch.labels.to_vector<int32_t>()) ends += label == 0 ? 1 : 0;
    RC_ASSERT(!batch.key_valid.defined() || i == evaluation.batches() - 1);
  }
  RC_ASSERT(labels == store.size() - store.documents());
  RC_ASSERT(ends == store.documents());
}

TEST(Evaluation, RefusesWhatItCannotDo) {
  const TokenStore store = counting(10);
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                Evaluation(store, {9, 10}, 4, 1);
              }),
              HasSubstr("at least two"));
  const Evaluation evaluation(store, {0, 10}, 4, 1);
  EXPECT_EQ(evaluation.batches(), 3);
  EXPECT_THROW(evaluation.batch(3), InvalidArgument);
  EXPECT_THROW(evaluation.batch(-1), InvalidArgument);
}

}  // namespace
}  // namespace faultline
