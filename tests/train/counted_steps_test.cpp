#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "tests/train/text.h"

namespace faultline::train {
namespace {

Config counted(int64_t steps) {
  Config config = small();
  config.counted_steps = steps;
  return config;
}

TEST(CountedSteps, IsWhatTheOptimizerCountsFromAndNothingElse) {
  Trainer fresh(counted(0), words());
  Trainer later(counted(1000), words());
  EXPECT_EQ(fresh.optimizer().counted(), 0);
  EXPECT_EQ(later.optimizer().counted(), 1000);
  const StepResult first = fresh.step();
  const StepResult same = later.step();
  EXPECT_EQ(later.optimizer().counted(), 1001);
  EXPECT_EQ(later.steps_done(), 1);
  // The first forward pass has seen no update yet; the schedule follows the run's own steps.
  EXPECT_EQ(same.loss, first.loss);
  EXPECT_EQ(same.grad_norm, first.grad_norm);
  EXPECT_EQ(same.lr, first.lr);
  // The corrections of step 1001 make another update.
  EXPECT_NE(later.step().loss, fresh.step().loss);
}

TEST(CountedSteps, DoNotCountAgainAfterAResume) {
  Trainer trainer(counted(1000), words());
  numbers_of(trainer, 3);
  State saved = trainer.state();
  for (auto& [name, tensor] : saved.tensors) tensor = clone(tensor);
  Trainer resumed(counted(1000), words());
  resumed.load(saved);
  EXPECT_EQ(resumed.optimizer().counted(), 1003);
  EXPECT_EQ(numbers_of(resumed, 2), numbers_of(trainer, 2));
}

TEST(CountedSteps, MayBeTheLargestNumberThatThereIs) {
  ConfigBuilder builder = ConfigBuilder::preset("tiny");
  builder.assign("counted_steps=9223372036854775807", "--set");
  EXPECT_EQ(builder.build().counted_steps, std::numeric_limits<int64_t>::max());
  Trainer trainer(counted(std::numeric_limits<int64_t>::max()), words());
  for (const double number : numbers_of(trainer, 3)) EXPECT_TRUE(std::isfinite(number));
}

TEST(CountedSteps, MayNotBeNegative) {
  ConfigBuilder builder = ConfigBuilder::preset("tiny");
  builder.assign("counted_steps=-1", "--set");
  EXPECT_THROW(builder.build(), InvalidArgument);
}

}  // namespace
}  // namespace faultline::train
