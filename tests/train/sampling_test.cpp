#include "train/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/rng.h"

namespace faultline::train {
namespace {

using Ids = std::vector<int32_t>;

// Forty logits, a few of them equal.
std::vector<float> some_logits() {
  const RandomSequence random(3, 1);
  std::vector<float> logits;
  for (uint64_t i = 0; i < 40; ++i) {
    logits.push_back(static_cast<float>(std::round(4 * random.normal(i)) / 4));
  }
  return logits;
}

// The definition, spelled out: sort all, cut, renormalise. In long double.
std::vector<std::pair<int32_t, long double>> oracle(const std::vector<float>& logits,
                                                    const SamplingOptions& options) {
  std::vector<std::pair<int32_t, long double>> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.emplace_back(i, std::exp(static_cast<long double>(logits[i]) / options.temperature));
  }
  const bool cut = options.top_k > 0 || options.top_p < 1;
  if (cut) {
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
  }
  if (options.top_k > 0) all.resize(std::min(all.size(), static_cast<size_t>(options.top_k)));
  long double total = 0;
  for (const auto& [id, weight] : all) total += weight;
  if (options.top_p < 1) {
    long double sum = 0;
    size_t count = 0;
    while (count < all.size() && (count == 0 || sum < options.top_p * total)) {
      sum += all[count++].second;
    }
    all.resize(count);
    total = sum;
  }
  for (auto& [id, weight] : all) weight /= total;
  return all;
}

// The same uniform numbers through the oracle's distribution: every single choice is equal.
TEST(Sampling, ChoosesExactlyAsTheDefinitionInHigherPrecision) {
  const std::vector<float> logits = some_logits();
  for (const SamplingOptions& options :
       {SamplingOptions{.seed = 1},
        {.seed = 2, .temperature = 0.3},
        {.seed = 3, .top_k = 7},
        {.seed = 4, .top_p = 0.8},
        {.seed = 5, .temperature = 2, .top_k = 20, .top_p = 0.5}}) {
    const auto expected = oracle(logits, options);
    const RandomSequence random(options.seed, stream_of("generate"));
    std::map<int32_t, int> counts;
    std::map<int32_t, int> wanted;
    for (int64_t step = 0; step < 5000; ++step) {
      const long double u = random.uniform(static_cast<uint64_t>(step));
      long double sum = 0;
      int32_t id = expected.back().first;
      for (const auto& [candidate, p] : expected) {
        sum += p;
        if (u < sum) {
          id = candidate;
          break;
        }
      }
      ++wanted[id];
      ++counts[choose(logits, options, step)];
    }
    EXPECT_EQ(counts, wanted) << options.seed;
    // And the numbers are uniform: six deviations of a binomial count.
    for (const auto& [id, p] : expected) {
      const double mean = 5000 * static_cast<double>(p);
      EXPECT_NEAR(counts[id], mean, 1 + 6 * std::sqrt(mean * (1 - static_cast<double>(p))))
          << options.seed << " " << id;
    }
  }
}

TEST(Sampling, IsCountedBySteps) {
  const std::vector<float> logits = some_logits();
  const SamplingOptions options{.seed = 9};
  EXPECT_EQ(choose(logits, options, 17), choose(logits, options, 17));
  Ids first;
  Ids second;
  for (int64_t step = 0; step < 40; ++step) first.push_back(choose(logits, options, step));
  for (int64_t step = 0; step < 40; ++step) second.push_back(choose(logits, {.seed = 10}, step));
  EXPECT_NE(first, second);
}

TEST(Sampling, TakesTheLowestIdOfEqualOnes) {
  const std::vector<float> logits{1, 5, 2, 5, 5};
  EXPECT_EQ(choose(logits, {.temperature = 0}, 0), 1);
  EXPECT_EQ(candidates_of(logits, {.top_k = 1}).ids, Ids{1});
  EXPECT_EQ(candidates_of(logits, {.top_k = 2}).ids, (Ids{1, 3}));
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.5}).ids, (Ids{1, 3}));
  EXPECT_EQ(candidates_of(std::vector<float>(4, 2.5F), {.top_p = 0.5}).ids, (Ids{0, 1}));
}

TEST(Sampling, TheNucleusHasItsEdges) {
  // Shares 1/2, 1/4, 1/8, 1/8, exact in f64 but for the logarithms.
  const std::vector<float> logits{0, std::log(2.0F), std::log(4.0F), 0};
  EXPECT_EQ(candidates_of(logits, {.top_p = 0}).ids, Ids{2});  // never none
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.49}).ids, Ids{2});
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.51}).ids, (Ids{2, 1}));
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.80}).ids, (Ids{2, 1, 0}));
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.99}).ids, (Ids{2, 1, 0, 3}));
  EXPECT_EQ(candidates_of(logits, {.top_p = 1}).ids, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(candidates_of(logits, {.top_k = 9}).ids, (Ids{0, 1, 2, 3}));
  // Of the two that top_k leaves, the first has a share of 2/3.
  EXPECT_EQ(candidates_of(logits, {.top_k = 2, .top_p = 0.6}).ids, Ids{2});
  EXPECT_EQ(candidates_of(logits, {.top_k = 2, .top_p = 0.7}).ids, (Ids{2, 1}));
}

// More than the first sorted part: a thousand equal ones.
TEST(Sampling, TheNucleusReachesFar) {
  const std::vector<float> logits(1000, 1);
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.5}).ids.size(), 500U);
  EXPECT_EQ(candidates_of(logits, {.top_p = 0.9995}).ids.size(), 1000U);
}

TEST(Sampling, StandsTinyTemperatures) {
  EXPECT_EQ(choose(std::vector<float>{1, 3, 2}, {.temperature = 1e-300}, 5), 1);
}

TEST(Sampling, RefusesImpossibleOptions) {
  EXPECT_THROW((SamplingOptions{.temperature = -1}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.temperature = std::nan("")}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.top_k = -1}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.top_p = -0.1}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.top_p = 1.1}.check()), InvalidArgument);
  EXPECT_THROW((SamplingOptions{.top_p = std::nan("")}.check()), InvalidArgument);
}

}  // namespace
}  // namespace faultline::train
