#include "train/generation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "autograd/functional.h"
#include "nn/gpt2.h"
#include "nn/llama.h"

namespace faultline::train {
namespace {

using Ids = std::vector<int32_t>;
using Kind = KvStorage::Kind;

// Weights so large that no two logits are near each other: rounding decides no choice.
constexpr nn::Gpt2Config kSmall{.vocab_size = 64,
                                .seq_len = 16,
                                .num_layers = 2,
                                .num_heads = 2,
                                .hidden_size = 32,
                                .init_std = 0.2};

constexpr nn::LlamaConfig kLlama{.vocab_size = 64,
                                 .seq_len = 16,
                                 .num_layers = 2,
                                 .num_heads = 4,
                                 .num_key_value_heads = 2,
                                 .hidden_size = 64,
                                 .intermediate_size = 48,
                                 .init_std = 0.2};

// Both have 2 layers, 2 key-value heads of size 16 and 16 positions.
std::vector<std::unique_ptr<nn::LanguageModel>> both_models() {
  std::vector<std::unique_ptr<nn::LanguageModel>> models;
  models.push_back(std::make_unique<nn::Gpt2>(kSmall, 3));
  models.push_back(std::make_unique<nn::Llama>(kLlama, 3));
  return models;
}

KvStorage storage(Kind kind, DType dtype = DType::f32) {
  return {.kind = kind,
          .dtype = dtype,
          .unwritten = nn::Unwritten::nan,
          .page_slots = 4,
          .checks = nn::PageChecks::every_read};
}

Request greedy(Ids prompt, int64_t tokens) {
  return {.prompt = std::move(prompt), .tokens = tokens, .sampling = {.temperature = 0}};
}

Ids tokens_of(nn::LanguageModel& model, const Request& request, const GenerationOptions& options) {
  return generate(model, {&request, 1}, options).rows[0].tokens;
}

// The definition: the whole text so far through the model, without cache or batch.
Ids by_hand(nn::LanguageModel& model, const Ids& prompt, int64_t count) {
  const NoGrad off;
  Ids text = prompt;
  for (int64_t i = 0; i < count; ++i) {
    const auto T = std::min<int64_t>(std::ssize(text), 16);
    const Tensor logits = model(tensor(Ids(text.end() - T, text.end()), {1, T}), {});
    text.push_back(argmax(slice(logits, 1, T - 1, T), 2).to_vector<int32_t>()[0]);
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

bool names(const std::string& error, const std::string& what) {
  return error.find(what) != std::string::npos;
}

// Ten tokens within the window of 16, and 20 that slide out of it.
TEST(Generation, GivesTheSameTokensWithAndWithoutACache) {
  for (const auto& each : both_models()) {
    nn::LanguageModel& model = *each;
    for (const int64_t count : {10, 20}) {
      const Ids expected = by_hand(model, {1, 2, 3}, count);
      for (const Kind kind : {Kind::none, Kind::contiguous, Kind::paged}) {
        EXPECT_EQ(tokens_of(model, greedy({1, 2, 3}, count), {.storage = storage(kind)}), expected);
      }
    }
    const Request sampled{.prompt = {4, 5}, .tokens = 20, .sampling = {.seed = 7}};
    const Ids expected = tokens_of(model, sampled, {.storage = storage(Kind::none)});
    EXPECT_EQ(tokens_of(model, sampled, {.storage = storage(Kind::contiguous)}), expected);
    EXPECT_EQ(tokens_of(model, sampled, {.storage = storage(Kind::paged)}), expected);
  }
}

TEST(Generation, ComputesEachPositionOnceUntilItSlides) {
  nn::Gpt2 model(kSmall, 3);
  const Request request = greedy({1, 2, 3}, 20);
  const Generation made = generate(model, {&request, 1}, {});
  EXPECT_EQ(made.passes, 20);
  // Slots 3 to 16 fill up with 14 passes; then each token needs its window anew.
  EXPECT_EQ(made.recomputed, 6);
  EXPECT_EQ(made.tokens(), 20);
  const Request fits = greedy({1, 2, 3}, 13);
  EXPECT_EQ(generate(model, {&fits, 1}, {}).recomputed, 0);
}

// Padding on the left, neighbours and rows that end early change nothing.
TEST(Generation, GivesARowWhatItGetsAlone) {
  for (const auto& each : both_models()) {
    nn::LanguageModel& model = *each;
    const std::vector<Request> requests{
        greedy({9}, 12),
        {.prompt = {1, 2, 3, 4, 5, 6, 7}, .tokens = 3, .sampling = {.seed = 4}},
        greedy({8, 8, 8, 8}, 18),
        {.prompt = {5, 1}, .tokens = 9, .sampling = {.seed = 5, .temperature = 2, .top_k = 30}}};
    for (const Kind kind : {Kind::none, Kind::contiguous, Kind::paged}) {
      const GenerationOptions options{.storage = storage(kind)};
      const Generation together = generate(model, requests, options);
      for (size_t b = 0; b < requests.size(); ++b) {
        EXPECT_EQ(together.rows[b].tokens, tokens_of(model, requests[b], options)) << b;
      }
    }
  }
}

TEST(Generation, StopsARowAtAnEndAndTheBatchWithItsLastRow) {
  nn::Gpt2 model(kSmall, 3);
  const Ids all = by_hand(model, {1, 2, 3}, 10);
  const int32_t end = all[4];
  const auto length = std::find(all.begin(), all.end(), end) - all.begin() + 1;
  const Request request = greedy({1, 2, 3}, 10);
  const Generation made = generate(model, {&request, 1}, {.end_ids = {63, end}});
  EXPECT_EQ(made.rows[0].tokens, Ids(all.begin(), all.begin() + length));
  EXPECT_EQ(made.rows[0].ending, Ending::end_id);
  EXPECT_EQ(made.passes, length);
  const Request none = greedy({1, 2, 3}, 0);
  const Generation nothing = generate(model, {&none, 1}, {});
  EXPECT_EQ(nothing.passes, 0);
  EXPECT_TRUE(nothing.rows[0].tokens.empty());
}

TEST(Generation, TakesAsManyTokensAsThereAreIntegers) {
  nn::Gpt2 model(kSmall, 3);
  const Ids expected = by_hand(model, {1, 2, 3}, 3);
  const Request all = greedy({1, 2, 3}, std::numeric_limits<int64_t>::max());
  for (const Kind kind : {Kind::none, Kind::contiguous, Kind::paged}) {
    const GenerationOptions how{.storage = storage(kind), .end_ids = {expected.back()}};
    EXPECT_EQ(tokens_of(model, all, how).back(), expected.back());
  }
  const GenerationOptions strict{.policy = nn::ContextPolicy::error};
  EXPECT_TRUE(names(error_of([&] { tokens_of(model, all, strict); }), "keep-tail"));
}

TEST(Generation, StreamsEachTokenAsItComes) {
  nn::Gpt2 model(kSmall, 3);
  const std::vector<Request> requests{greedy({9}, 3), greedy({1, 2}, 2)};
  std::vector<std::pair<size_t, int32_t>> seen;
  GenerationOptions options;
  options.on_token = [&](size_t row, int32_t id) { seen.emplace_back(row, id); };
  const Generation made = generate(model, requests, options);
  const Ids& a = made.rows[0].tokens;
  const Ids& b = made.rows[1].tokens;
  const std::vector<std::pair<size_t, int32_t>> expected{
      {0, a[0]}, {1, b[0]}, {0, a[1]}, {1, b[1]}, {0, a[2]}};
  EXPECT_EQ(seen, expected);
}

TEST(Generation, NeverGivesAnIdThatIsNotUsable) {
  nn::Gpt2 model(kSmall, 3);
  const Request request{.prompt = {1}, .tokens = 200, .sampling = {.temperature = 10}};
  for (const int32_t id : tokens_of(model, request, {.usable_ids = 20})) EXPECT_LT(id, 20);
}

// Rounded keys are another model; the tokens of the two kinds of cache are those of one another.
TEST(Generation, RunsOnSixteenBitCaches) {
  for (const auto& each : both_models()) {
    nn::LanguageModel& model = *each;
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const Request request = greedy({1, 2, 3}, 12);
      EXPECT_EQ(tokens_of(model, request, {.storage = storage(Kind::contiguous, dtype)}),
                tokens_of(model, request, {.storage = storage(Kind::paged, dtype)}));
    }
  }
}

TEST(Generation, ReusesPrefixesWithoutChangingAToken) {
  for (const auto& each : both_models()) {
    nn::LanguageModel& model = *each;
    const NoGrad off;
    GenerationOptions options{.storage = storage(Kind::paged)};
    const nn::PageShape page{2, 2, 16, /*slots=*/4};
    options.storage.pool = std::make_shared<nn::PagePool>(page, 64, 4, nn::Unwritten::nan);
    options.storage.prefixes = std::make_shared<nn::PrefixCache>(options.storage.pool, 16);
    options.storage.weights = "base";
    const Ids system{1, 2, 3, 4, 5, 6, 7, 8};
    const auto asked = [&](const Ids& question, const Ids& begin) {
      Ids prompt = begin;
      prompt.insert(prompt.end(), question.begin(), question.end());
      return greedy(prompt, 3);
    };
    const std::vector<Request> requests{asked({9, 9}, system), asked({10}, system),
                                        asked({}, system), asked({11, 12, 13}, {1, 2, 3, 4, 60})};
    const std::vector<int64_t> reused{0, 8, 7, 4};
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation made = generate(model, {&requests[i], 1}, options);
      EXPECT_EQ(made.rows[0].reused, reused[i]) << i;
      EXPECT_EQ(made.rows[0].tokens, by_hand(model, requests[i].prompt, 3)) << i;
    }
    const Generation together = generate(model, requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(together.rows[i].tokens, by_hand(model, requests[i].prompt, 3)) << i;
    }
    options.storage.weights = "adapter";
    EXPECT_EQ(generate(model, {&requests[0], 1}, options).rows[0].reused, 0);
  }
}

TEST(Generation, TreatsLongPromptsByItsPolicy) {
  nn::Gpt2 model(kSmall, 3);
  Ids prompt;
  for (int32_t i = 0; i < 20; ++i) prompt.push_back(i);
  const Request request = greedy(prompt, 4);
  const auto made = [&](nn::ContextPolicy policy) {
    return generate(model, {&request, 1}, {.policy = policy}).rows[0];
  };
  const Continuation tail = made(nn::ContextPolicy::keep_tail);
  EXPECT_EQ(tail.context.requested, 20);
  EXPECT_EQ(tail.context.used, 16);
  EXPECT_EQ(tail.context.dropped, (std::vector<nn::TokenRange>{{0, 4}}));
  EXPECT_EQ(tail.tokens, by_hand(model, prompt, 4));
  const Continuation head = made(nn::ContextPolicy::keep_head);
  EXPECT_EQ(head.context.dropped, (std::vector<nn::TokenRange>{{12, 20}}));
  EXPECT_EQ(head.tokens, by_hand(model, Ids(prompt.begin(), prompt.begin() + 12), 4));
  const Continuation sinks = made(nn::ContextPolicy::sink_tail);
  EXPECT_EQ(sinks.context.dropped, (std::vector<nn::TokenRange>{{4, 8}}));
  Ids seen{0, 1, 2, 3};
  seen.insert(seen.end(), prompt.begin() + 8, prompt.end());
  for (size_t i = 0; i < 4; ++i) {  // sinks stay, the tail slides on
    EXPECT_EQ(sinks.tokens[i], by_hand(model, seen, 1)[0]) << i;
    seen.erase(seen.begin() + 4);
    seen.push_back(sinks.tokens[i]);
  }
  EXPECT_PRED2(names, error_of([&] { made(nn::ContextPolicy::error); }),
               "20 tokens and 4 new ones");
  const Request full = greedy(Ids(prompt.begin(), prompt.begin() + 16), 1);
  EXPECT_THROW(generate(model, {&full, 1}, {.policy = nn::ContextPolicy::error}), InvalidArgument);
}

TEST(Generation, RefusesWhatItCannotContinue) {
  nn::Gpt2 model(kSmall, 3);
  const auto error = [&](const Request& request) {
    return error_of([&] { generate(model, {&request, 1}, {}); });
  };
  EXPECT_PRED2(names, error(greedy({}, 1)), "the prompt of row 0 is empty");
  EXPECT_PRED2(names, error(greedy({1, 64}, 1)), "holds the id 64");
  EXPECT_PRED2(names, error(greedy({-1}, 1)), "holds the id -1");
  EXPECT_PRED2(names, error(greedy({1}, -1)), "asks for -1 tokens");
  EXPECT_THROW(generate(model, {}, {}), InvalidArgument);
}

// Position 5 is the first whose embedding is not a number.
TEST(Generation, NamesTheStepWhoseLogitsAreNoNumbers) {
  nn::Gpt2 model(kSmall, 3);
  for (Parameter* parameter : model.parameters()) {
    const NoGrad off;
    if (parameter->name() == "wpe.weight") {
      fill_(slice(parameter->value(), 0, 5, 6), std::nan(""));
    }
  }
  const std::vector<Request> requests{greedy({1, 2, 3}, 10)};
  for (const Kind kind : {Kind::none, Kind::contiguous}) {
    EXPECT_PRED2(names, error_of([&] { generate(model, requests, {.storage = storage(kind)}); }),
                 "the logits of row 0 hold nan at step 3");
  }
}

TEST(Generation, LeavesTheModelInItsMode) {
  nn::Gpt2 model(kSmall, 3);
  const Request request = greedy({1}, 1);
  generate(model, {&request, 1}, {});
  EXPECT_TRUE(model.training());
}

}  // namespace
}  // namespace faultline::train
