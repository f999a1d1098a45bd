#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tests/diagnose/watched.h"

// The detectors of gradients, decay and step counters: each fires on a crafted violation and is
// silent where its file says so. All detectors watch.
namespace faultline::diagnose {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- counter.advances ---------------------------------------------------------------------------

std::vector<Detection> counted(double before, double after) {
  return watched([&](Context& context) {
    context.events.emit(optim::OptimizerEvent{"adamw", 1, before, after, 1e-3});
  });
}

TEST(CounterAdvances, TellsAStallAWrapAndAStartBelowOneApart) {
  const auto evidence = [](double before, double after) {
    const auto detections = counted(before, after);
    return detections.size() == 1 ? detections[0].evidence : "not one detection";
  };
  EXPECT_THAT(evidence(2048, 2048), HasSubstr("stands still"));
  EXPECT_THAT(evidence(2147483647, -2147483648.0), HasSubstr("wrapped around"));
  EXPECT_THAT(evidence(-1, 0), HasSubstr("started below 0"));
  EXPECT_THAT(evidence(3, 5), HasSubstr("does not count one"));
}

TEST(CounterAdvances, SeesAWrapAlsoWhereDoublesHaveNoOddNumbers) {
  EXPECT_THAT(names_of(counted(0x1p63, -0x1p63)),
              ElementsAre("counter.advances -> adamw.step-counter"));
}

TEST(CounterAdvances, IsSilentOnACounterThatSaturatesAndOnARestoredOne) {
  for (const int64_t start : {int64_t{100000}, std::numeric_limits<int64_t>::max()}) {
    const auto detections = watched([&](Context&) {
      Parameter parameter("p", ones({2}), Decay::no);
      optim::AdamW adamw({{{&parameter}, 0}});
      adamw.set_counted(start);
      for (int i = 0; i < 3; ++i) {
        parameter.clear_gradient();
        backward(sum(parameter.value()));
        adamw.step(1e-3);
      }
    });
    EXPECT_THAT(names_of(detections), IsEmpty()) << start;
  }
}

// ---- decay.policy -------------------------------------------------------------------------------

TEST(DecayPolicy, FiresWhereAnExemptParameterIsDecayed) {
  const auto detections = watched([](Context&) {
    Parameter weight("fc.weight", ones({2, 2}), Decay::yes);
    Parameter gain("norm.weight", ones({2}), Decay::no);
    optim::AdamW({{{&weight, &gain}, 0.1}}).step(1e-3);
  });
  ASSERT_THAT(names_of(detections), ElementsAre("decay.policy -> wd.on-norm"));
  EXPECT_THAT(detections[0].evidence, AllOf(HasSubstr("1 of 2"), HasSubstr("norm.weight")));
}

TEST(DecayPolicy, IsSilentOnTheDeclaredPolicyAndWithoutDecay) {
  const auto detections = watched([](Context&) {
    Parameter weight("fc.weight", ones({2, 2}), Decay::yes);
    Parameter gain("norm.weight", ones({2}), Decay::no);
    optim::AdamW(optim::decay_groups({&weight, &gain}, 0.1)).step(1e-3);
    optim::AdamW({{{&weight, &gain}, 0}}).step(1e-3);
    optim::Sgd({{{&weight}, 0}, {{&gain}, 0}}).step(1e-3);  // decaying less than declared
  });
  EXPECT_THAT(names_of(detections), IsEmpty());
}

// ---- gradients.dead -----------------------------------------------------------------------------

// What is said about `steps` steps on two parameters, x = (2, 3) and y = (0, 0), both of which the
// optimizer holds.
std::vector<Detection> descended(
    int steps, const std::function<Tensor(Parameter& x, Parameter& y, int step)>& loss,
    double lr = 0x1p-10) {
  return watched([&](Context&) {
    Parameter x("x", tensor<float>({2, 3}), Decay::no);
    Parameter y("y", zeros({2}), Decay::no);
    optim::Sgd sgd({{{&x, &y}, 0}});
    for (int step = 1; step <= steps; ++step) {
      x.clear_gradient();
      y.clear_gradient();
      backward(sum(loss(x, y, step)));
      sgd.step(lr);
    }
  });
}

Tensor only_x(Parameter& x, Parameter&, int) { return x.value(); }

TEST(GradientsDead, TellsUnusedFromCutFromZero) {
  const auto evidence = [](const auto& loss) {
    const auto detections = descended(150, loss);
    return names_of(detections) == std::vector<std::string>{"gradients.dead -> grad.dead"}
               ? detections[0].evidence
               : "not one detection";
  };
  EXPECT_THAT(evidence(&only_x),
              AllOf(HasSubstr("1 parameters had no gradient and 0"), HasSubstr("first y"),
                    HasSubstr("no op of the forward pass reads it")));
  EXPECT_THAT(
      evidence([](Parameter& x, Parameter& y, int) { return x.value() + exp(y.value().detach()); }),
      HasSubstr("exp reads it, but backward does not come back"));
  EXPECT_THAT(
      evidence([](Parameter& x, Parameter& y, int) { return x.value() + relu(y.value() - 10.0); }),
      AllOf(HasSubstr("0 parameters had no gradient and 1"), HasSubstr("backward reached it")));
}

TEST(GradientsDead, WaitsForAHundredAndFiftyStepsRunning) {
  EXPECT_THAT(names_of(descended(149, &only_x)), IsEmpty());
}

// The gradient of an expert that got no token: there is none, or its gate multiplies it by 0.
enum class Idle : uint8_t { left_out, gated };

// y is an expert that gets tokens in every `period`-th of `steps` steps, and none after `last`.
std::vector<Detection> routed(Idle idle, int period, int last, int steps) {
  return descended(steps, [=](Parameter& x, Parameter& y, int step) {
    const bool is_chosen = step % period == 0 && step <= last;
    if (idle == Idle::left_out) return is_chosen ? x.value() + y.value() : x.value();
    return x.value() + y.value() * (is_chosen ? 1.0 : 0.0);
  });
}

TEST(GradientsDead, IsSilentOnAnExpertThatGetsTokensInEveryTwentiethStep) {
  EXPECT_THAT(names_of(routed(Idle::left_out, 20, 400, 400)), IsEmpty());
  EXPECT_THAT(names_of(routed(Idle::gated, 20, 400, 400)), IsEmpty());
}

// With gaps of 39 steps it waits for 312.
TEST(GradientsDead, WaitsEightTimesTheLongestGapOfAParameterThatIsSeldomUsed) {
  EXPECT_THAT(names_of(routed(Idle::gated, 40, 80, 80 + 311)), IsEmpty());
  EXPECT_THAT(names_of(routed(Idle::gated, 40, 80, 80 + 312)),
              ElementsAre("gradients.dead -> grad.dead"));
}

// In a row of one token the only weight is 1, whatever query and key are: their gradients are 0.
TEST(GradientsDead, IsSilentOnARunWithOneTokenRowsAmongOthers) {
  const auto attended = [](Parameter& x, Parameter& y, int step) {
    const int64_t tokens = step % 10 == 0 ? 2 : 1;
    return slice(x.value(), 0, 0, tokens) * softmax(slice(y.value(), 0, 0, tokens));
  };
  EXPECT_THAT(names_of(descended(300, attended)), IsEmpty());
}

TEST(GradientsDead, IsSilentWhereNothingIsAlive) {
  EXPECT_THAT(names_of(descended(32, [](Parameter& x, Parameter& y,
                                        int) { return (x.value() + y.value()) * 0.0; })),
              IsEmpty());
}

TEST(GradientsDead, IsSilentOnAFrozenParameter) {
  EXPECT_THAT(names_of(descended(32,
                                 [](Parameter& x, Parameter& y, int) {
                                   y.set_trainable(false);
                                   return x.value() + y.value();
                                 })),
              IsEmpty());
}

TEST(GradientsDead, IsSilentOnRowsThatNoBatchHas) {
  EXPECT_THAT(names_of(descended(32,
                                 [](Parameter& x, Parameter& y, int) {
                                   return x.value() +
                                          index_select(y.value(), 0, tensor<int32_t>({1}));
                                 })),
              IsEmpty());
}

// An adapter x * y begins with y = 0: the first gradient of x is exactly 0. While lr is 0 it stays
// so, and that says nothing.
TEST(GradientsDead, IsSilentOnAnAdapterThatBeginsAtZero) {
  const auto adapter = [](Parameter& x, Parameter& y, int) { return x.value() * y.value(); };
  EXPECT_THAT(names_of(descended(32, adapter)), IsEmpty());
  EXPECT_THAT(names_of(descended(32, adapter, 0)), IsEmpty());
}

// Both factors 0: neither ever moves.
TEST(GradientsDead, FiresOnAnAdapterOfTwoZeros) {
  const auto detections = watched([](Context&) {
    Parameter weight("weight", ones({1}), Decay::no);
    Parameter a("a", zeros({1}), Decay::no);
    Parameter b("b", zeros({1}), Decay::no);
    optim::Sgd sgd({{{&weight, &a, &b}, 0}});
    for (int step = 1; step <= 160; ++step) {
      for (Parameter* parameter : {&weight, &a, &b}) parameter->clear_gradient();
      backward(weight.value() + a.value() * b.value());
      sgd.step(0.125);
    }
  });
  ASSERT_THAT(names_of(detections), ElementsAre("gradients.dead -> grad.dead"));
  EXPECT_THAT(detections[0].evidence, HasSubstr("and 2 one of zeros only"));
}

// ---- backward.in-forward ------------------------------------------------------------------------

// A layer that calls `inside` before its forward pass is over.
class Watched : public nn::Module {
 public:
  explicit Watched(std::function<void(const Tensor& weight)> inside)
      : weight_(add_parameter("weight", {1}, Decay::no)), inside_(std::move(inside)) {}
  Tensor operator()() {
    return unit([&] {
      inside_(use(weight_));
      return use(weight_) * 3.0;
    });
  }

 private:
  Parameter& weight_;
  std::function<void(const Tensor&)> inside_;
};

std::vector<Detection> forward_with(const std::function<void(const Tensor& weight)>& inside) {
  struct Root : nn::Module {
    explicit Root(Watched& layer) { add_child("layer", layer); }
  };
  return watched([&](Context&) {
    Watched layer(inside);
    const Root root(layer);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) backward(layer());
  });
}

TEST(BackwardInForward, FiresWhenAnObserverAddsToGradients) {
  const auto detections = forward_with([](const Tensor& weight) { backward(weight * 1.0); });
  ASSERT_THAT(names_of(detections), ElementsAre("backward.in-forward -> debug.observer-backward"));
  EXPECT_THAT(detections[0].evidence,
              AllOf(HasSubstr("of layer"), HasSubstr("gradient of layer.weight")));
}

TEST(BackwardInForward, IsSilentOnAccumulationAndOnGradientsThatTouchNoLeaf) {
  EXPECT_THAT(names_of(forward_with([](const Tensor&) {})), IsEmpty());
  EXPECT_THAT(names_of(forward_with([](const Tensor& weight) {
                gradients(weight * weight, std::span<const Tensor>(&weight, 1));
              })),
              IsEmpty());
}

// ---- all of them --------------------------------------------------------------------------------

TEST(OptimizerDetectors, AreSilentOnATrainingRunThatAccumulatesAndRestores) {
  const auto detections = watched([](Context&) {
    train::Config config = tiny_config();
    config.micro_batch_size = 2;
    config.counted_steps = 5000;
    train::Trainer trainer(config, uniform_tokens(4000));
    for (int i = 0; i < 20; ++i) trainer.step();
  });
  EXPECT_THAT(names_of(detections), IsEmpty());
}

}  // namespace
}  // namespace faultline::diagnose
