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

// From ln 256 for uniform bytes. The text is made of seven words drawn evenly, about 5.6 bytes each
// with their space: ln 7 / 5.6 = 0.35 nats a byte is the least that any model can reach. 2.0 is
// where a model gets that knows how often each byte comes and a little of its neighbours.
TEST(LlamaTraining, LossFalls) {
  Config config = small_llama();
  config.dropout = 0;
  Trainer trainer(config, words());
  const auto numbers = numbers_of(trainer, 80);
  EXPECT_NEAR(numbers[0], std::log(256.0), 0.1);
  double late = 0;
  for (size_t i = 0; i < 5; ++i) late += numbers[numbers.size() - 2 - 2 * i] / 5;
  EXPECT_LT(late, 2.0);
  EXPECT_GT(late, 0.35);
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
