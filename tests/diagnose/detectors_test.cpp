#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "lab/catalogue.h"
#include "nn/attention.h"
#include "optim/optimizer.h"
#include "tests/diagnose/watched.h"

// Each detector fires on a crafted violation and is silent on its near miss. All of them watch.
namespace faultline::diagnose {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- counter.advances
// ----------------------------------------------------------------------------

std::vector<std::string> counted(double before, double after) {
  return names_of(watched([&](Context& context) {
    context.events.emit(optim::OptimizerEvent{"adamw", 1, before, after, 1e-3});
  }));
}

TEST(CounterAdvances, FiresWhenAnAppliedStepDoesNotCountOne) {
  const auto alarm = ElementsAre("counter.advances -> adamw.step-counter");
  EXPECT_THAT(counted(256, 256), alarm);
  EXPECT_THAT(counted(5, 7), alarm);
  EXPECT_THAT(counted(2147483647, -2147483648.0), alarm);
  EXPECT_THAT(counted(NAN, NAN), alarm);
}

TEST(CounterAdvances, IsSilentOnAResumedCounterAndWhereDoublesHaveNoOddNumbers) {
  EXPECT_THAT(counted(100000, 100001), IsEmpty());
  EXPECT_THAT(counted(0x1p53, 0x1p53), IsEmpty());
}

// ---- gradients.cleared
// ---------------------------------------------------------------------------

std::vector<std::string> begun_with(const std::function<void(Parameter&)>& prepare) {
  return names_of(watched([&](Context& context) {
    Parameter parameter("p", ones({2}), Decay::no);
    prepare(parameter);
    const std::vector<Parameter*> parameters{&parameter};
    context.events.emit(train::StepBeginEvent{2, parameters});
  }));
}

TEST(GradientsCleared, FiresOnAGradientThatIsStillThere) {
  EXPECT_THAT(begun_with([](Parameter& p) { backward(sum(p.value())); }),
              ElementsAre("gradients.cleared -> optim.missing-zero-grad"));
}

TEST(GradientsCleared, IsSilentOnUndefinedGradientsAndOnZeros) {
  EXPECT_THAT(begun_with([](Parameter&) {}), IsEmpty());
  EXPECT_THAT(begun_with([](Parameter& p) { backward(sum(p.value() * 0.0)); }), IsEmpty());
}

// ---- labels.alignment
// ----------------------------------------------------------------------------

std::vector<std::string> batch_with(const std::vector<int32_t>& inputs,
                                    const std::vector<int32_t>& labels) {
  return names_of(watched([&](Context& context) {
    const auto length = static_cast<int64_t>(inputs.size());
    Batch batch;
    batch.inputs = tensor(inputs, {1, length});
    batch.labels = tensor(labels, {1, length});
    context.events.emit(train::BatchEvent{1, batch});
    context.events.emit(train::ObjectiveEvent{1, length, 1, ones({})});
  }));
}

std::vector<int32_t> counting(int count, int32_t first) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

TEST(LabelsAlignment, FiresWhenEveryLabelIsItsOwnInput) {
  std::vector<int32_t> labels = counting(20, 1);
  labels[3] = kIgnoredLabel;
  EXPECT_THAT(batch_with(counting(20, 1), labels),
              ElementsAre("labels.alignment -> labels.no-shift"));
}

TEST(LabelsAlignment, IsSilentOnShiftedLabelsConstantTextAndFewLabels) {
  EXPECT_THAT(batch_with(counting(20, 1), counting(20, 2)), IsEmpty());
  const std::vector<int32_t> same(20, 7);  // "aaaa": own and next token are alike
  EXPECT_THAT(batch_with(same, same), IsEmpty());
  EXPECT_THAT(batch_with(counting(15, 1), counting(15, 1)), IsEmpty());
  std::vector<int32_t> one_honest = counting(20, 1);
  one_honest[4] = 9;
  EXPECT_THAT(batch_with(counting(20, 1), one_honest), IsEmpty());
}

// ---- loss.below-floor
// ----------------------------------------------------------------------------

std::vector<std::string> probed(double loss, double deviation) {
  return names_of(watched([&](Context& context) {
    context.events.emit(train::FloorProbeEvent{1, loss, std::log(16.0), deviation, 1000});
  }));
}

TEST(LossBelowFloor, FiresBeyondFourStandardErrors) {
  EXPECT_THAT(probed(2.72, 0.01), ElementsAre("loss.below-floor -> "));
}

TEST(LossBelowFloor, IsSilentWithinTheNoiseAboveTheFloorAndOnNaN) {
  EXPECT_THAT(probed(2.74, 0.01), IsEmpty());
  EXPECT_THAT(probed(9, 0.01), IsEmpty());
  EXPECT_THAT(probed(NAN, NAN), IsEmpty());
}

TEST(LossBelowFloor, NamesTheLabelsWhereTheyAreTheInputs) {
  const auto detections = watched([](Context& context) {
    Batch batch;
    batch.inputs = tensor<int32_t>({1, 2, 3}, {1, 3});
    batch.labels = batch.inputs;
    context.events.emit(train::BatchEvent{1, batch});
    context.events.emit(train::ObjectiveEvent{1, 3, 1, ones({})});
    context.events.emit(train::FloorProbeEvent{1, 0.1, std::log(16.0), 0.01, 1000});
  });
  EXPECT_THAT(names_of(detections), ElementsAre("loss.below-floor -> labels.no-shift"));
}

// ---- finite.first
// --------------------------------------------------------------------------------

TEST(FiniteFirst, NamesTheFirstOpAndNoCauseThatItDoesNotKnow) {
  const auto detections = watched([](Context&) {
    const Tensor x = exp(full({2}, 100));  // infinite
    sub(x, x);                             // NaN, a consequence
  });
  ASSERT_THAT(names_of(detections), ElementsAre("finite.first -> "));
  EXPECT_EQ(detections[0].op, "exp");
}

TEST(FiniteFirst, LooksAtBackwardToo) {
  const auto detections = watched([](Context&) {
    const Tensor x = zeros({1});
    set_requires_grad(x);
    backward(sqrt(x));  // slope 1 / (2 sqrt 0)
  });
  ASSERT_THAT(names_of(detections), ElementsAre("finite.first -> "));
  EXPECT_THAT(detections[0].evidence, testing::HasSubstr("backward"));
}

TEST(FiniteFirst, IsSilentOnAMaskOfMinusInfinityAndOnLargeScores) {
  EXPECT_THAT(watched([](Context&) {
                const Tensor keep = less(arange(4), full({1}, 2, DType::i64));
                softmax(where(keep, zeros({4}), full({1}, -INFINITY)));
              }),
              IsEmpty());
  EXPECT_THAT(watched([](Context&) { softmax(tensor<float>({1e30F, 0})); }), IsEmpty());
}

TEST(FiniteFirst, DoesNotBlameASoftmaxForItsInputs) {
  const auto detections = watched([](Context&) { softmax(tensor<float>({INFINITY, 0})); });
  EXPECT_THAT(names_of(detections), ElementsAre("finite.first -> "));
}

TEST(FiniteFirst, TakesAbsentInputsForWhatTheyAre) {
  const auto detections = watched([](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find("softmax.overflow:naive").plant(context);
    masked_softmax(full({1, 1, 2, 2}, 100), {}, {}, MaskAttributes{});
  });
  EXPECT_THAT(names_of(detections), ElementsAre("finite.first -> softmax.overflow"));
}

// ---- mask.visibility
// -----------------------------------------------------------------------------

// Shows weights for scores as attention does, with a causal mask.
std::vector<std::string> shown(const Tensor& scores, const Tensor& weights,
                               const Tensor& valid = {}) {
  return names_of(watched([&](Context&) {
    observe("attention", {scores, weights, valid, Tensor()}, MaskAttributes{true, 0, 1.0});
  }));
}

Tensor rows(std::initializer_list<float> values) { return tensor(values, {1, 1, 2, 2}); }

TEST(MaskVisibility, FiresOnWeightInTheFutureHoweverSmall) {
  EXPECT_THAT(shown(rows({0, 0, 0, 0}), rows({1, 1e-30F, 0.5, 0.5})),
              ElementsAre("mask.visibility -> attn.mask-broadcast"));
}

TEST(MaskVisibility, FiresOnAnAllowedKeyThatIsNotSeen) {
  EXPECT_THAT(shown(rows({0, 0, 0, 79}), rows({1, 0, 0, 1})), ElementsAre("mask.visibility -> "));
}

TEST(MaskVisibility, FiresOnARowThatSeesNothingAndHasWeights) {
  const Tensor valid = less(zeros({1, 2}, DType::i64), zeros({1}, DType::i64));  // all padding
  EXPECT_THAT(shown(rows({0, 0, 0, 0}), rows({1, 0, 0.5, 0.5}), valid),
              ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(shown(rows({0, 0, 0, 0}), rows({0, 0, 0, 0}), valid), IsEmpty());
}

TEST(MaskVisibility, IsSilentWhereAnAllowedKeyUnderflows) {
  EXPECT_THAT(shown(rows({0, 0, -110, -100}), rows({1, 0, 0, 1})), IsEmpty());
  EXPECT_THAT(shown(rows({0, 0, 0, 110}), rows({1, 0, 0, 1})), IsEmpty());
}

TEST(MaskVisibility, LeavesRowsThatAreNotFiniteToOthers) {
  EXPECT_THAT(shown(rows({0, 0, 0, 0}), rows({NAN, NAN, 0.5, 0.5})), IsEmpty());
}

TEST(MaskVisibility, IsSilentOnOurAttentionWithDocumentsPaddingAndAnOffset) {
  EXPECT_THAT(watched([](Context&) {
                nn::Mask mask;
                mask.query_offset = 2;
                mask.documents = tensor<int32_t>({0, 0, 1, 1, 1}, {1, 5});
                mask.key_valid = less(reshape(arange(5), {1, 5}), full({1}, 4, DType::i64));
                const Tensor q = normal({1, 2, 3, 4}, 0, 3, 1, 1);
                const Tensor k = normal({1, 2, 5, 4}, 0, 3, 1, 2);
                const auto math = nn::AttentionPolicy::require(nn::AttentionImplementation::math);
                nn::attention(q, k, k, mask, {.scale = 0.5, .policy = math});
              }),
              IsEmpty());
}

// ---- accumulate.absorbed
// -------------------------------------------------------------------------

// Adds `count` gradients of `size` to a leaf through the seam.
std::vector<std::string> accumulated(int count, double size, DType held_in) {
  return names_of(watched([&](Context& context) {
    const auto planted = context.seams.replace<AccumulateSeam>(
        [held_in](const Tensor& held, const Tensor& contribution) {
          const Tensor rounded = cast(contribution, held_in);
          return held.defined() ? add(held, rounded) : rounded;
        });
    const Tensor x = ones({1});
    set_requires_grad(x);
    backward(x * 1.0);
    for (int i = 0; i < count; ++i) backward(x * size);
  }));
}

TEST(AccumulateAbsorbed, FiresWhereAddendsVanishInBf16AndFp16) {
  const auto alarm = ElementsAre("accumulate.absorbed -> bf16.accumulate");
  EXPECT_THAT(accumulated(200, 0x1p-9, DType::bf16), alarm);
  EXPECT_THAT(accumulated(200, 0x1p-12, DType::f16), alarm);
}

// A loop may be watched from its middle, when leaves hold gradients already.
TEST(AccumulateAbsorbed, BeginsWithWhatALeafHoldsWhenTheWatchBegins) {
  const Tensor x = ones({1000});
  set_requires_grad(x);
  backward(sum(x * 1.0));
  EXPECT_THAT(names_of(watched([&](Context&) {
                for (int i = 0; i < 3; ++i) backward(sum(x * 0x1p-10));
              })),
              IsEmpty());
}

TEST(AccumulateAbsorbed, IsSilentWhereLittleIsLost) {
  // One absorbed addend of 2^-12: an error of 2e-4 of what was added.
  EXPECT_THAT(accumulated(1, 0x1p-12, DType::bf16), IsEmpty());
  // f32 absorbs every one of these, and a thousand of them still do not matter.
  EXPECT_THAT(accumulated(1000, 0x1p-25, DType::f32), IsEmpty());
  EXPECT_THAT(accumulated(1000, 0x1p-10, DType::f32), IsEmpty());
}

// ---- healthy training, and one fault seen by two
// -------------------------------------------------

std::vector<Detection> trained(const train::Config& config, int steps,
                               const char* fault = nullptr) {
  return watched([&](Context& context) {
    const lab::Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (fault != nullptr) planted = catalogue.find(fault).plant(context);
    train::Trainer trainer(config, uniform_tokens(60000));
    for (int i = 0; i < steps; ++i) trainer.step();
    trainer.probe_floor(64);
  });
}

TEST(Detectors, AreSilentOnHealthyTraining) {
  train::Config config = tiny_config();
  EXPECT_THAT(names_of(trained(config, 40)), IsEmpty());
  config.micro_batch_size = 1;
  config.dropout = 0.1;
  EXPECT_THAT(names_of(trained(config, 20)), IsEmpty()) << "accumulation and dropout";
  config.pack = false;
  EXPECT_THAT(names_of(trained(config, 20)), IsEmpty()) << "padded documents";
  config.init_std = 2;
  EXPECT_THAT(names_of(trained(config, 20)), IsEmpty()) << "scores far above 88";
}

TEST(Detectors, RankTheMaskAboveTheLossThatItLowers) {
  const auto detections = trained(tiny_config(), 150, "attn.mask-broadcast:inverted");
  EXPECT_THAT(names_of(detections),
              ElementsAre("mask.visibility -> attn.mask-broadcast", "loss.below-floor -> "));
}

}  // namespace
}  // namespace faultline::diagnose
