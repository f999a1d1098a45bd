#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/train/text.h"
#include "train/generation.h"

namespace faultline::train {
namespace {

Config small_llama() {
  Config config = small();
  config.family = "llama";
  config.num_heads = 4;
  config.num_key_value_heads = 2;
  return config;
}

// The entropy of how often each byte comes, in nats: the least loss without looking at neighbours.
double byte_entropy(const TokenStore& tokens) {
  std::vector<double> counts(256, 0);
  for (int64_t i = 0; i < tokens.size(); ++i) counts[static_cast<size_t>(tokens[i])] += 1;
  double entropy = 0;
  for (const double count : counts) {
    const double share = count / static_cast<double>(tokens.size());
    if (share > 0) entropy -= share * std::log(share);
  }
  return entropy;
}

// From ln 256 for uniform bytes to below what counting bytes gives, so attention has learnt from
// what came before. The text is seven words drawn evenly, 36 bytes with their spaces: no honest
// model gets below ln 7 / (36 / 7) a byte.
TEST(LlamaTraining, LossFallsBelowWhatCountingBytesGives) {
  Config config = small_llama();
  config.dropout = 0;
  Trainer trainer(config, words());
  const auto numbers = numbers_of(trainer, 80);
  EXPECT_NEAR(numbers[0], std::log(256.0), 0.1);
  double late = 0;
  for (size_t i = 0; i < 5; ++i) late += numbers[numbers.size() - 2 - 2 * i] / 5;
  EXPECT_LT(late, 0.8 * byte_entropy(words()));
  EXPECT_GT(late, std::log(7.0) * 7 / 36);
}

TEST(LlamaTraining, OneTwoAndThreeThreadsGiveTheSameBits) {
  std::vector<std::vector<double>> runs;
  for (const int threads : {1, 2, 3}) {
    const Scoped<int> workers(Context::current().threads, threads);
    Trainer trainer(small_llama(), words());
    runs.push_back(numbers_of(trainer, 6));
    runs.back().push_back(trainer.evaluate());
  }
  EXPECT_EQ(runs[1], runs[0]);
  EXPECT_EQ(runs[2], runs[0]);
}

TEST(LlamaTraining, ResumedIsBitwiseEqualToNeverStopping) {
  Trainer straight(small_llama(), words());
  const auto expected = numbers_of(straight, 8);
  State saved;
  {
    Trainer stopped(small_llama(), words());
    numbers_of(stopped, 5);
    for (const auto& [name, tensor] : stopped.state().tensors) saved.tensors[name] = clone(tensor);
    saved.values = stopped.state().values;
  }
  Trainer resumed(small_llama(), words());
  resumed.load(saved);
  const auto rest = numbers_of(resumed, 3);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + 10));
}

TEST(LlamaTraining, RefusesTheStateOfAGpt2) {
  Trainer gpt2(small(), words());
  Trainer llama(small_llama(), words());
  EXPECT_THROW(llama.load(gpt2.state()), InvalidArgument);
}

// Two prompts of unequal length, so that one is padded; greedy, and beyond the 16 positions.
TEST(LlamaGeneration, WithAndWithoutACacheChoosesTheSame) {
  Trainer trainer(small_llama(), words());
  numbers_of(trainer, 40);
  const nn::EvaluationMode evaluation(trainer.model());
  std::vector<Request> requests(2);
  requests[0].prompt = ByteTokenizer().encode("the light");
  requests[1].prompt = ByteTokenizer().encode("in ");
  for (Request& request : requests) {
    request.tokens = 20;
    request.sampling.temperature = 0;
  }
  GenerationOptions without;
  without.storage.kind = KvStorage::Kind::none;
  const Generation plain = generate(trainer.model(), requests, without);
  const Generation cached = generate(trainer.model(), requests, {});
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(cached.rows[row].tokens, plain.rows[row].tokens) << row;
    EXPECT_EQ(plain.rows[row].tokens.size(), 20U);
  }
}

}  // namespace
}  // namespace faultline::train
