#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "nn/attention.h"
#include "nn/layers.h"
#include "tests/diagnose/watched.h"

// The detectors of a loss that takes a logarithm of 0, and of an evaluation that does not repeat:
// each fires on a crafted violation and is silent on its near miss. All detectors watch.
namespace faultline::diagnose {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- log.of-zero
// -----------------------------------------------------------------------------------

Tensor far_apart() { return tensor<float>({0, 200}, {1, 2}); }

// What is said of a loss that sums the logarithms of what `made` gives.
std::vector<std::string> logs_summed(const std::function<Tensor()>& made) {
  return names_of(watched([&](Context&) { sum(-log(made())); }));
}
const auto kZeroLogged = ElementsAre("log.of-zero -> loss.log-zero", "finite.first -> ");

TEST(LogOfZero, FiresOnTheLogarithmOfASoftmaxThatUnderflowed) {
  EXPECT_THAT(logs_summed([] { return softmax(far_apart()); }), kZeroLogged);
  EXPECT_THAT(logs_summed([] { return sum(slice(softmax(far_apart()), 1, 0, 1), {1}); }),
              kZeroLogged)
      << "picked before";
  EXPECT_THAT(logs_summed([] { return clone(softmax(far_apart())); }), kZeroLogged);
}

TEST(LogOfZero, FiresOnASoftmaxByHandThatUnderflowed) {
  EXPECT_THAT(logs_summed([] {
                const Tensor x = far_apart();
                const Tensor e = exp(x - amax(x, {1}, KeepDim::yes));
                return e / sum(e, {1}, KeepDim::yes);
              }),
              kZeroLogged);
  EXPECT_THAT(logs_summed([] { return sum(exp(full({2}, -200)), {0}); }), kZeroLogged)
      << "no largest subtracted";
}

// As the root itself, or as the gradient 0 * -inf of what was thrown away.
TEST(LogOfZero, FiresWhereTheInfinityGoesBackward) {
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor x = full({1}, -200);
                set_requires_grad(x);
                backward(log(exp(x)));
              })),
              testing::Contains("log.of-zero -> loss.log-zero"));
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor x = far_apart();
                set_requires_grad(x);
                const Tensor p = softmax(x);
                backward(sum(where(equal(p, zeros({1})), zeros({1}), p * log(p))));
              })),
              testing::Contains("log.of-zero -> loss.log-zero"));
}

// The usual entropy: 0 log 0 is NaN, and is not taken.
TEST(LogOfZero, IsSilentOnAnInfinityThatIsThrownAway) {
  const auto of_us = testing::HasSubstr("log.of-zero");
  EXPECT_THAT(names_of(watched([](Context&) {
                const NoGrad off;
                const Tensor p = softmax(far_apart());
                sum(where(less(zeros({1}), p), p * log(p), zeros({1})));
              })),
              testing::Not(testing::Contains(of_us)));
  EXPECT_THAT(names_of(watched([](Context&) { log(softmax(far_apart())); })),
              testing::Not(testing::Contains(of_us)));
}

TEST(LogOfZero, ForgetsMemoryThatTheHostTookOver) {
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor x = far_apart();
                const std::byte* const released = softmax(x).view().data;
                const Tensor counts = tensor<float>({0, 1}, {1, 2});
                ASSERT_EQ(counts.view().data, released);
                sum(log(counts));
              })),
              ElementsAre("finite.first -> "));
}

TEST(LogOfZero, IsSilentOnALogSumExpByHandAndOnZerosByRight) {
  EXPECT_THAT(logs_summed([] {
                const Tensor x = far_apart();
                return sum(exp(x - amax(x, {1}, KeepDim::yes)), {1});
              }),
              IsEmpty());
  // A class that is ruled out has logit -inf, and probability 0 by right.
  for (const auto& ruled_out : {
           logs_summed([] {
             return softmax(tensor<float>({0, -INFINITY}, {1, 2}));
           }),
           logs_summed([] { return exp(full({2}, -INFINITY)); }),
       }) {
    EXPECT_THAT(ruled_out, testing::Not(testing::Contains(testing::HasSubstr("log.of-zero"))));
  }
}

TEST(LogOfZero, IsSilentOnProbabilitiesAboveZeroAndOnTheRightLoss) {
  EXPECT_THAT(logs_summed([] { return softmax(tensor<float>({0, 80}, {1, 2})); }), IsEmpty());
  EXPECT_THAT(names_of(watched([](Context&) {
                sum(log_softmax(far_apart()));
                sum(cross_entropy_rows(far_apart(), tensor<int32_t>({0})));
              })),
              IsEmpty());
}

TEST(LogOfZero, LeavesZerosOfAnotherOriginToOthers) {
  EXPECT_THAT(logs_summed([] { return zeros({2}); }), ElementsAre("finite.first -> "));
  // The 0 was put into the softmax's own memory later.
  EXPECT_THAT(logs_summed([] {
                const Tensor p = softmax(far_apart());
                fill_(p, 0);
                return p;
              }),
              ElementsAre("finite.first -> "));
}

// ---- evaluation.repeats
// ----------------------------------------------------------------------------

enum class When : uint8_t { before, during, after };

std::vector<std::string> dropped(When when, double p) {
  return names_of(watched([&](Context& context) {
    const nn::DropoutKey key(1);
    const auto act = [&](When now) {
      if (now == when) dropout(ones({1, 8}), key.tensor(), p, 0);
    };
    act(When::before);
    context.events.emit(train::EvaluationBeginEvent{1});
    act(When::during);
    context.events.emit(train::EvaluationEndEvent{1});
    act(When::after);
  }));
}

TEST(EvaluationRepeats, FiresOnDropoutInAnEvaluation) {
  EXPECT_THAT(dropped(When::during, 0.1), ElementsAre("evaluation.repeats -> nn.dropout-in-eval"));
}

TEST(EvaluationRepeats, FiresOnDropoutInsideOfAttention) {
  const auto attend = [](double p) {
    return names_of(watched([&](Context& context) {
      context.events.emit(train::EvaluationBeginEvent{1});
      const nn::DropoutKey key(1);
      const Tensor q = normal({1, 1, 4, 4}, 0, 1, 1, 1);
      const auto flash = nn::AttentionPolicy::require(nn::AttentionImplementation::flash);
      nn::attention(q, q, q, {}, {.dropout = {key.tensor(), p, 0}, .policy = flash});
      context.events.emit(train::EvaluationEndEvent{1});
    }));
  };
  EXPECT_THAT(attend(0.1), ElementsAre("evaluation.repeats -> nn.dropout-in-eval"));
  EXPECT_THAT(attend(0), IsEmpty());
}

TEST(EvaluationRepeats, IsSilentOnDropoutInTrainingAndOnProbabilityZero) {
  EXPECT_THAT(dropped(When::before, 0.1), IsEmpty());
  EXPECT_THAT(dropped(When::after, 0.1), IsEmpty());
  EXPECT_THAT(dropped(When::during, 0), IsEmpty());
}

// What is said of an evaluation that asks `losses` with 0 and then with 1, and of two that do.
std::vector<std::string> asked_twice(
    const std::function<void(int)>& losses, const std::function<void()>& between = [] {}) {
  return names_of(watched([&](Context& context) {
    for (int time = 0; time < 2; ++time) {
      context.events.emit(train::EvaluationBeginEvent{1});
      losses(time);
      context.events.emit(train::EvaluationEndEvent{1});
      between();
    }
  }));
}
std::vector<std::string> asked_twice_at_once(const std::function<void(int)>& losses) {
  return names_of(watched([&](Context& context) {
    context.events.emit(train::EvaluationBeginEvent{1});
    losses(0);
    losses(1);
    context.events.emit(train::EvaluationEndEvent{1});
  }));
}

// Three tokens, whose logits are the rows of `table` and something more.
void three_tokens(const Tensor& table, const Tensor& more = {}) {
  const Tensor logits = embedding(table, tensor<int32_t>({1, 2, 3}));
  cross_entropy_rows(more.defined() ? logits + more : logits, tensor<int32_t>({2, 3, 0}));
}
Tensor numbers(int64_t rows, int which) {
  return normal({rows, 4}, 0, 1, 1, static_cast<uint64_t>(which));
}
void with_other_noise(int time) { three_tokens(full({4, 4}, 1), numbers(3, time)); }

TEST(EvaluationRepeats, FiresOnAnAnswerThatChangesWithoutADropout) {
  EXPECT_THAT(asked_twice(&with_other_noise), ElementsAre("evaluation.repeats -> "));
  EXPECT_THAT(asked_twice_at_once(&with_other_noise), ElementsAre("evaluation.repeats -> "));
}

TEST(EvaluationRepeats, IsSilentOnTheSameAnswerAndWhereAParameterMayHaveMoved) {
  EXPECT_THAT(asked_twice([](int) { three_tokens(full({4, 4}, 1), numbers(3, 1)); }), IsEmpty());
  EXPECT_THAT(asked_twice(&with_other_noise, [] { fill_(ones({1}), 2); }), IsEmpty());
}

// A model and another, or its average, on the same text; and one whose weights change in between.
TEST(EvaluationRepeats, IsSilentOnOtherWeights) {
  const auto tables = std::make_shared<std::vector<Tensor>>();
  const auto other_model = [&](int time) { three_tokens((*tables)[static_cast<size_t>(time)]); };
  const auto swapped = [&](int time) {
    copy_((*tables)[2], (*tables)[static_cast<size_t>(time)]);
    three_tokens((*tables)[2]);
  };
  const auto loaded = [&](int time) {
    (*tables)[2].assign<float>((*tables)[static_cast<size_t>(time)].data<float>());
    three_tokens((*tables)[2]);
  };
  Context context;
  const ContextGuard guard(context);
  *tables = {numbers(4, 0), numbers(4, 1), zeros({4, 4})};
  for (const std::function<void(int)>& losses :
       {std::function<void(int)>(other_model), std::function<void(int)>(swapped),
        std::function<void(int)>(loaded)}) {
    EXPECT_THAT(asked_twice(losses), IsEmpty());
    EXPECT_THAT(asked_twice_at_once(losses), IsEmpty());
  }
}

TEST(EvaluationRepeats, IsSilentOnOtherFeaturesOfTheSameLabels) {
  const auto classify = [](int time) {
    const Tensor features = tensor<float>({1, static_cast<float>(time), 3, 4}, {2, 2});
    cross_entropy_rows(features, tensor<int32_t>({0, 1}));
  };
  EXPECT_THAT(asked_twice(classify), IsEmpty());
  EXPECT_THAT(asked_twice_at_once(classify), IsEmpty());
}

TEST(EvaluationRepeats, IsSilentOnTheSameTextUnderAnotherMaskOrTemperature) {
  const auto attend = [](const nn::Mask& mask) {
    const Tensor x = reshape(embedding(numbers(4, 1), tensor<int32_t>({1, 2, 3})), {1, 1, 3, 4});
    const Tensor y = nn::attention(x, x, x, mask, {.scale = 0.5});
    cross_entropy_rows(reshape(y, {3, 4}), tensor<int32_t>({2, 3, 0}));
  };
  EXPECT_THAT(asked_twice([&](int time) { attend(nn::Mask{.causal = time == 0}); }), IsEmpty());
  EXPECT_THAT(asked_twice_at_once([&](int time) {
                const auto whole = tensor<int32_t>({0, 0, 0}, {1, 3});
                attend({.documents = time == 0 ? whole : tensor<int32_t>({0, 1, 1}, {1, 3})});
              }),
              IsEmpty());
  EXPECT_THAT(asked_twice([](int time) {
                const Tensor logits = embedding(numbers(4, 1), tensor<int32_t>({1, 2, 3}));
                cross_entropy_rows(logits * (1.0 + time), tensor<int32_t>({2, 3, 0}));
              }),
              IsEmpty());
}

TEST(EvaluationRepeats, IsSilentOnATrainerThatTrainsWithDropoutAndEvaluates) {
  train::Config config = tiny_config();
  config.dropout = 0.5;
  EXPECT_THAT(names_of(watched([&](Context&) {
                train::Trainer trainer(config, uniform_tokens(4000));
                trainer.step();
                trainer.evaluate(2);
                trainer.evaluate(2);
                trainer.step();
                trainer.evaluate(2);
              })),
              IsEmpty());
}

}  // namespace
}  // namespace faultline::diagnose
