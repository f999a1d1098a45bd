#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "tests/support/compare.h"
#include "tests/train/text.h"

namespace faultline::train {
namespace {

TEST(Trainer, LossFalls) {
  Config config = small();
  config.dropout = 0;
  Trainer trainer(config, words());
  const auto numbers = numbers_of(trainer, 60);
  double early = 0;
  double late = 0;
  for (size_t i = 0; i < 5; ++i) {
    early += numbers[2 * i] / 5;
    late += numbers[numbers.size() - 2 - 2 * i] / 5;
  }
  EXPECT_NEAR(numbers[0], std::log(256.0), 0.1);  // uniform at first, but for init_std
  EXPECT_LT(late, 0.6 * early);
}

TEST(Resume, IsBitwiseEqualToNeverStopping) {
  Trainer straight(small(), words());
  const auto expected = numbers_of(straight, 12);
  for (const int64_t stop : {0, 1, 5, 11}) {
    State saved;
    {
      Trainer stopped(small(), words());
      numbers_of(stopped, stop);
      // Copies: the tensors of a state are the trainer's own.
      for (const auto& [name, tensor] : stopped.state().tensors)
        saved.tensors[name] = clone(tensor);
      saved.values = stopped.state().values;
    }
    Trainer resumed(small(), words());
    resumed.load(saved);
    EXPECT_EQ(resumed.steps_done(), stop);
    const auto rest = numbers_of(resumed, 12 - stop);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + 2 * stop)) << stop;
    for (const auto& [name, tensor] : straight.state().tensors) {
      EXPECT_TRUE(test::same_bits(resumed.state().tensor(name), tensor)) << name;
    }
  }
}

TEST(Resume, RefusesAStateOfOtherDataOrAnotherModel) {
  Trainer trainer(small(), words());
  const State state = trainer.state();
  Trainer other_text(small(), words(30));
  EXPECT_THROW(other_text.load(state), InvalidArgument);
  Config wider = small();
  wider.hidden_size = 32;
  Trainer other_model(wider, words());
  EXPECT_THROW(other_model.load(state), InvalidArgument);
}

TEST(Threads, OneTwoAndThreeGiveTheSameBits) {
  std::vector<std::vector<double>> runs;
  for (const int threads : {1, 2, 3}) {
    const Scoped<int> workers(Context::current().threads, threads);
    Trainer trainer(small(), words());
    runs.push_back(numbers_of(trainer, 6));
    runs.back().push_back(trainer.evaluate());
  }
  EXPECT_EQ(runs[1], runs[0]);
  EXPECT_EQ(runs[2], runs[0]);
}

TEST(Accumulation, OfMicroBatchesEqualsTheWholeBatch) {
  // Padded documents of unequal length: a mean of means would show.
  Config config = small();
  config.dropout = 0.1;  // keyed by sequence, so it does not depend on the split either
  config.pack = false;
  config.seq_len = 96;
  Trainer whole(config, words());
  const StepResult expected = whole.step();
  for (const int64_t size : {1, 2, 3}) {
    config.micro_batch_size = size;
    Trainer split(config, words());
    const StepResult found = split.step();
    EXPECT_EQ(found.tokens, expected.tokens);
    // The loss is a sum of up to 4 x 96 f32 terms in another order: their number in eps at worst.
    EXPECT_NEAR(found.loss / expected.loss, 1, 4 * 96 * 0x1p-23);
    // Each gradient is a sum over as many positions, through two layers.
    EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 4 * 4 * 96 * 0x1p-23);
  }
}

TEST(Trainer, ASteadyStepAsksTheDeviceForNoMemory) {
  const auto allocator = Allocator::create(cpu_device());
  const Scoped<std::shared_ptr<Allocator>> own(Context::current().allocator, allocator);
  Config config = small();
  config.micro_batch_size = 2;
  Trainer trainer(config, words());
  for (int i = 0; i < 3; ++i) trainer.step();
  const int64_t before = allocator->stats().device_allocations;
  const int64_t live = allocator->stats().live_bytes;
  for (int i = 0; i < 5; ++i) trainer.step();
  EXPECT_EQ(allocator->stats().device_allocations, before);
  EXPECT_EQ(allocator->stats().live_bytes, live);
}

TEST(Trainer, NeverReadsMemoryThatNobodyWrote) {
  // Fresh memory of NaNs and guards around every block change no bit.
  Trainer plain(small(), words());
  const auto expected = numbers_of(plain, 4);
  const auto allocator = Allocator::create(cpu_device(), {.nan_fill = true, .canaries = true});
  const Scoped<std::shared_ptr<Allocator>> own(Context::current().allocator, allocator);
  Trainer trainer(small(), words());
  EXPECT_EQ(numbers_of(trainer, 4), expected);
  EXPECT_NO_THROW(allocator->check_canaries());
}

TEST(Trainer, ProbesAndEvaluationsChangeNoLaterStep) {
  Trainer plain(small(), words());
  const auto expected = numbers_of(plain, 6);
  Trainer probed(small(), words());
  std::vector<double> found;
  for (int i = 0; i < 6; ++i) {
    const auto step = numbers_of(probed, 1);
    found.insert(found.end(), step.begin(), step.end());
    probed.probe_floor(3);
    probed.evaluate(1);
  }
  EXPECT_EQ(found, expected);
}

TEST(FloorProbe, OfAnHonestModelIsNotBelowTheFloor) {
  Trainer trainer(small(), words());
  numbers_of(trainer, 40);
  const FloorProbeEvent probe = trainer.probe_floor(32);
  EXPECT_EQ(probe.floor, std::log(256.0));
  EXPECT_GT(probe.deviation, 0);
  EXPECT_GT(probe.tokens, 32 * 16 * 0.95);  // an end token in 256 predicts nothing
  EXPECT_GT(probe.loss, probe.floor - 5 * probe.deviation);
}

TEST(Trainer, AStepWithNothingToPredictIsAnErrorAndChangesNothing) {
  Config config = small();
  config.dropout = 0;
  Trainer trainer(config, words());
  trainer.step();
  const Tensor before = clone(trainer.state().tensor("model.wte.weight"));
  {
    const auto ignored = Context::current().seams.replace<LabelSeam>([](const TokenRow& row) {
      return std::vector<int32_t>(row.tokens.size() - 1, kIgnoredLabel);
    });
    EXPECT_THROW(trainer.step(), InvalidArgument);
  }
  EXPECT_EQ(trainer.steps_done(), 1);
  EXPECT_TRUE(test::same_bits(trainer.state().tensor("model.wte.weight"), before));
  EXPECT_TRUE(std::isfinite(trainer.step().loss));
}

TEST(Trainer, ReportsALossThatIsNotFiniteAndGoesOn) {
  Trainer trainer(small(), words());
  trainer.step();
  {
    const NoGrad off;
    for (Parameter* parameter : trainer.model().parameters()) {
      if (parameter->name() == "ln_f.bias") fill_(parameter->value(), std::nan(""));
    }
  }
  EXPECT_TRUE(std::isnan(trainer.step().loss));
  EXPECT_EQ(trainer.steps_done(), 2);
  EXPECT_TRUE(std::isnan(trainer.state().tensor("model.wte.weight").to_vector<double>()[0]));
}

TEST(Trainer, TellsObserversWhatItDoesInOrder) {
  Context& context = Context::current();
  std::string told;
  std::vector<EventBus::Subscription> subscriptions;
  const auto listen = [&]<class E>(std::type_identity<E>, const char* name) {
    subscriptions.push_back(context.events.subscribe<E>([&told, name](const E&) { told += name; }));
  };
  listen(std::type_identity<RunEvent>{}, "run ");
  listen(std::type_identity<StepBeginEvent>{}, "begin ");
  listen(std::type_identity<BatchEvent>{}, "batch ");
  listen(std::type_identity<ObjectiveEvent>{}, "objective ");
  listen(std::type_identity<BackwardEvent>{}, "backward ");
  listen(std::type_identity<EvaluationBeginEvent>{}, "evaluate ");
  listen(std::type_identity<FloorProbeEvent>{}, "probed ");
  listen(std::type_identity<EvaluationEndEvent>{}, "evaluated ");
  listen(std::type_identity<optim::OptimizerEvent>{}, "optimizer ");
  listen(std::type_identity<StepEndEvent>{}, "end ");
  Config config = small();
  config.micro_batch_size = 2;
  Trainer trainer(config, words());
  trainer.step();
  trainer.step();
  const std::string micro_batch = "batch objective backward ";
  const std::string step = "begin " + micro_batch + micro_batch + "optimizer end ";
  EXPECT_EQ(told, "run " + step + step);

  told.clear();
  trainer.evaluate(1);
  EXPECT_EQ(told, "evaluate evaluated ");
  told.clear();
  trainer.probe_floor(1);
  EXPECT_EQ(told, "evaluate probed evaluated ");
}

TEST(Trainer, TakesTheSequencesOfTheSamplerOneStepAfterTheOther) {
  const Config config = small();
  std::vector<int32_t> seen;
  const auto watch = Context::current().events.subscribe<BatchEvent>([&](const BatchEvent& event) {
    const auto inputs = event.batch.inputs.to_vector<int32_t>();
    seen.insert(seen.end(), inputs.begin(), inputs.end());
  });
  Trainer trainer(config, words());
  for (int step = 0; step < 3; ++step) trainer.step();

  const DataSplit split = hold_out_last_tenth(words(), config.seq_len);
  Sampler sampler(words(), split.training, {config.seq_len, config.batch_size, config.seed});
  std::vector<int32_t> expected;
  for (int step = 0; step < 3; ++step, sampler.advance()) {
    const auto inputs = sampler.batch().inputs.to_vector<int32_t>();
    expected.insert(expected.end(), inputs.begin(), inputs.end());
  }
  EXPECT_EQ(seen, expected);
}

TEST(Trainer, RefusesTextThatDoesNotFit) {
  Config config = small();
  config.vocab_size = 128;
  EXPECT_THROW(Trainer(config, words()), InvalidArgument);
  config = small();
  config.seq_len = 100000;
  EXPECT_THROW(Trainer(config, words()), InvalidArgument);
}

}  // namespace
}  // namespace faultline::train
