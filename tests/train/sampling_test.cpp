#include "train/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "autograd/functional.h"
#include "tests/train/text.h"

namespace faultline::train {
namespace {

std::vector<int32_t> text_of(nn::Gpt2& model, const SamplingOptions& options, int64_t count) {
  std::vector<int32_t> ids{'i', 'n'};
  NextByte next(model, options);
  for (int64_t i = 0; i < count; ++i) ids.push_back(next(ids));
  return ids;
}

TEST(Sampling, GivesOneTextASeed) {
  nn::Gpt2 model(small().model(), 3);
  model.set_training(false);
  const auto text = text_of(model, {.seed = 5}, 40);  // more than the window of 16
  EXPECT_EQ(text_of(model, {.seed = 5}, 40), text);
  EXPECT_NE(text_of(model, {.seed = 6}, 40), text);
}

TEST(Sampling, TakesTheLikeliestAtTemperatureZeroAndWithTopOne) {
  nn::Gpt2 model(small().model(), 3);
  model.set_training(false);
  const auto text = text_of(model, {.seed = 5, .temperature = 0}, 10);
  EXPECT_EQ(text_of(model, {.seed = 9, .top_k = 1}, 10), text);
  const NoGrad off;
  const Tensor logits = model(tensor<int32_t>({'i', 'n'}, {1, 2}), {});
  EXPECT_EQ(text[2], argmax(slice(logits, 1, 1, 2), 2).item<int64_t>());
}

TEST(Sampling, DrawsEachByteAsOftenAsTheModelSays) {
  nn::Gpt2 model(small().model(), 3);
  model.set_training(false);
  const NoGrad off;
  const Tensor logits = model(tensor<int32_t>({'i'}, {1, 1}), {});
  const auto expected = softmax(logits * 20.0).to_vector<double>();  // temperature 1 / 20
  NextByte next(model, {.seed = 1, .temperature = 0.05});
  constexpr int kDraws = 3000;
  std::map<int32_t, int> drawn;
  for (int i = 0; i < kDraws; ++i) ++drawn[next({'i'})];
  // Six standard deviations of a binomial count, and a half for its steps.
  for (int32_t id = 0; id < 256; ++id) {
    const double p = expected[static_cast<size_t>(id)];
    EXPECT_NEAR(drawn[id], kDraws * p, 0.5 + 6 * std::sqrt(kDraws * p * (1 - p)) + 1) << id;
  }
}

TEST(Sampling, NeverGivesAnIdThatIsNoByte) {
  Config config = small();
  config.vocab_size = 1024;
  nn::Gpt2 model(config.model(), 3);
  model.set_training(false);
  for (const int32_t id : text_of(model, {.temperature = 10}, 200)) EXPECT_LT(id, 256);
}

TEST(Sampling, RefusesImpossibleOptionsAndAModelThatDiverged) {
  EXPECT_THROW((SamplingOptions{.temperature = -1}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.temperature = std::nan("")}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.top_k = -1}.check()), InvalidArgument);
  nn::Gpt2 model(small().model(), 3);
  for (Parameter* parameter : model.parameters()) {
    const NoGrad off;
    if (parameter->name() == "ln_f.bias") fill_(parameter->value(), std::nan(""));
  }
  EXPECT_THROW(text_of(model, {}, 1), InvalidArgument);
}

}  // namespace
}  // namespace faultline::train
