#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "tests/support/compare.h"

namespace faultline::optim {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// One step of AdamW with lr 1 on p = 0 under gradient 1, from `counted` steps on, and p after it.
double first_move(AdamW& adamw, Parameter& parameter) {
  parameter.clear_gradient();
  backward(sum(parameter.value()));
  adamw.step(1);
  return parameter.value().item<double>();
}

// ---- set_counted --------------------------------------------------------------------------------

TEST(SetCounted, GoesOnAsAnOptimizerWouldThatHasDoneSoMany) {
  Parameter parameter("p", zeros({1}), Decay::no);
  AdamW adamw({{{&parameter}, 0}});
  adamw.set_counted(41);
  EXPECT_EQ(adamw.counted(), 41);
  const double moved = first_move(adamw, parameter);
  EXPECT_EQ(adamw.counted(), 42);
  // m = 0.1 and v = 0.001, corrected as of step 42. Some roundings in f32 each.
  const double expected = -(0.1 / (1 - std::pow(0.9, 42))) /
                          (std::sqrt(0.001) / std::sqrt(1 - std::pow(0.999, 42)) + 1e-8);
  EXPECT_NEAR(moved, expected, 16 * 0x1p-24 * std::abs(expected));
}

TEST(SetCounted, HoldsTheLargestInt64ExactlyAndStaysThere) {
  Parameter parameter("p", zeros({1}), Decay::no);
  AdamW adamw({{{&parameter}, 0}});
  for (const int64_t counted : {kLargest - 1, kLargest}) {
    adamw.set_counted(counted);
    EXPECT_EQ(adamw.state().tensor("counter").item<int64_t>(), counted);
    first_move(adamw, parameter);
    EXPECT_EQ(adamw.state().tensor("counter").item<int64_t>(), kLargest);
  }
}

TEST(SetCounted, RefusesANegativeCountAndKeepsItsOwn) {
  Parameter parameter("p", zeros({1}), Decay::no);
  Sgd sgd({{{&parameter}, 0}});
  sgd.set_counted(3);
  EXPECT_THROW(sgd.set_counted(-1), InvalidArgument);
  EXPECT_EQ(sgd.counted(), 3);
}

// ---- StepCounterSeam ----------------------------------------------------------------------------

TEST(StepCounterSeam, IsAskedOnceWhenAnOptimizerIsMade) {
  Context& context = Context::current();
  Parameter parameter("p", zeros({1}), Decay::no);
  int asked = 0;
  auto replaced = context.seams.replace<StepCounterSeam>([&] {
    ++asked;
    StepCounter counter = StepCounterSeam::standard();
    counter.start = 7;
    return counter;
  });
  AdamW adamw({{{&parameter}, 0}});
  EXPECT_EQ(adamw.counted(), 7);
  first_move(adamw, parameter);
  replaced.reset();
  first_move(adamw, parameter);
  EXPECT_EQ(adamw.counted(), 9);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(AdamW({{{&parameter}, 0}}).counted(), 0);
}

// The first step is number 1: what would be number 0 is refused before anything moves.
TEST(StepCounterSeam, CanNotMakeAStepNumberedZero) {
  const auto replaced = Context::current().seams.replace<StepCounterSeam>([] {
    StepCounter counter = StepCounterSeam::standard();
    counter.start = -1;
    return counter;
  });
  Parameter parameter("p", zeros({1}), Decay::no);
  AdamW adamw({{{&parameter}, 0}});
  EXPECT_THROW(first_move(adamw, parameter), InvalidArgument);
  EXPECT_EQ(parameter.value().item<double>(), 0);
}

// ---- DecaySeam ----------------------------------------------------------------------------------

TEST(DecaySeam, DecidesTheGroupsWhileItIsReplaced) {
  Parameter weight("weight", ones({2, 2}), Decay::yes);
  Parameter gain("gain", ones({2}), Decay::no);
  const auto decayed = [&] { return decay_groups({&weight, &gain}, 0.5)[0].parameters; };
  auto replaced = Context::current().seams.replace<DecaySeam>(
      [](const Parameter& parameter) { return parameter.name() == "gain"; });
  EXPECT_EQ(decayed(), std::vector<Parameter*>{&gain});
  replaced.reset();
  EXPECT_EQ(decayed(), std::vector<Parameter*>{&weight});
}

// ---- the kernels of an update -------------------------------------------------------------------

void do_nothing(const KernelArgs&) {}
constexpr KernelRecord kDoNothing{"adamw/nothing", &do_nothing};

TEST(UpdateKernelSeam, IsOfferedTheOwnKernelAndItsAnswerRuns) {
  Parameter parameter("p", zeros({1}), Decay::no);
  AdamW adamw({{{&parameter}, 0}});
  auto replaced = Context::current().seams.replace<UpdateKernelSeam>([](const KernelRecord& own) {
    EXPECT_EQ(own.run, kernels::adamw.run);
    return &kDoNothing;
  });
  EXPECT_EQ(first_move(adamw, parameter), 0);
  replaced.reset();
  EXPECT_LT(first_move(adamw, parameter), 0);
}

void correct_by_a_half(const KernelArgs& args) {
  for (int i = 0; i < 2; ++i) args.outputs[0].as<double>()[i] = 0.5;
}
constexpr KernelRecord kCorrectByAHalf{"bias_corrections/half", &correct_by_a_half};

TEST(CorrectionKernelSeam, IsOfferedTheOwnKernelAndItsAnswerRuns) {
  Parameter parameter("p", zeros({1}), Decay::no);
  AdamW adamw({{{&parameter}, 0}});
  const auto replaced =
      Context::current().seams.replace<CorrectionKernelSeam>([](const KernelRecord& own) {
        EXPECT_EQ(own.run, kernels::bias_corrections.run);
        return &kCorrectByAHalf;
      });
  const double expected = -(0.1 / 0.5) / (std::sqrt(0.001) / std::sqrt(0.5) + 1e-8);
  EXPECT_NEAR(first_move(adamw, parameter), expected, 16 * 0x1p-24 * std::abs(expected));
}

}  // namespace
}  // namespace faultline::optim
