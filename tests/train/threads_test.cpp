#include <gtest/gtest.h>

#include <thread>

#include "tests/train/text.h"

namespace faultline::train {
namespace {

std::vector<double> train_alone(uint64_t seed, bool halved) {
  Context context({.threads = 1, .seed = seed});
  const ContextGuard guard(context);
  std::shared_ptr<void> replaced;
  if (halved) {
    // A seam of its own: this rank's gradients never join, the latest one counts.
    replaced = context.seams.replace<AccumulateSeam>(
        [](const Tensor&, const Tensor& contribution) { return contribution; });
  }
  Config config = small();
  config.seed = seed;
  config.micro_batch_size = 2;
  Trainer trainer(config, words());
  return numbers_of(trainer, 5);
}

TEST(ThreadsRanks, TrainSideBySideWithContextsAndSeamsOfTheirOwn) {
  const auto plain = train_alone(1, false);
  const auto halved = train_alone(2, true);
  std::vector<double> first;
  std::vector<double> second;
  std::thread rank_0([&] { first = train_alone(1, false); });
  std::thread rank_1([&] { second = train_alone(2, true); });
  rank_0.join();
  rank_1.join();
  EXPECT_EQ(first, plain);
  EXPECT_EQ(second, halved);
  EXPECT_NE(train_alone(2, false), halved);  // the seam does act
}

}  // namespace
}  // namespace faultline::train
