#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/functional.h"
#include "lab/case.h"
#include "lab/run_case.h"
#include "tests/diagnose/watched.h"

// What the cases about labels, losses and evaluation promise beyond their own figures: that the
// fault is found in a run of the trainer, by name, and by nobody under another name.
namespace faultline::lab {
namespace {

using diagnose::Detection;
using diagnose::tiny_config;
using diagnose::watched;

// Documents of 1 to 40 symbols below 16.
TokenStore uneven_documents() {
  const RandomSequence random(1, stream_of("uneven documents"));
  TokenStoreBuilder builder(16, 0);
  uint64_t drawn = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<int32_t> ids(1 + random.below(40, drawn++));
    for (int32_t& id : ids) id = 1 + static_cast<int32_t>(random.below(15, drawn++));
    builder.add_document(ids);
  }
  return builder.finish();
}

// What all detectors say of a run in which the fault is planted ("" for none).
std::vector<Detection> trained_with(const std::string& fault, const train::Config& config,
                                    int steps) {
  return watched([&](Context& context) {
    const Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (!fault.empty()) planted = catalogue.find(fault).plant(context);
    train::Trainer trainer(config, uneven_documents());
    for (int i = 0; i < steps; ++i) trainer.step();
    trainer.evaluate(2);
    trainer.probe_floor(16);
  });
}

// The fault is named first, the same settings without it alarm nobody.
void expect_named(const std::string& fault, const train::Config& config, int steps = 20) {
  const std::string id = fault.substr(0, fault.find(':'));
  const auto detections = trained_with(fault, config, steps);
  ASSERT_FALSE(detections.empty()) << fault;
  EXPECT_EQ(detections[0].cause, id);
  for (const Detection& d : detections) {
    EXPECT_TRUE(d.cause == id || d.cause.empty()) << d.detector << " names " << d.cause;
  }
  EXPECT_THAT(diagnose::names_of(trained_with("", config, steps)), testing::IsEmpty());
}

TEST(LabelCases, ShiftsAndMaskedEndsAreNamedInTraining) {
  expect_named("labels.no-shift", tiny_config());
  expect_named("labels.double-shift", tiny_config());
  expect_named("labels.eos-masked", tiny_config());
}

// Rows of every length, from one without text to a full one, with an end token within.
TEST(LabelCases, TheCollatorThatShiftsIsRightOnPaddedRows) {
  const Catalogue catalogue;
  const Variant& variant = catalogue.find("labels.no-shift");
  Context context;
  const ContextGuard guard(context);
  const auto wrong = variant.plant(context);
  const auto remedy = variant.remedy_plant()(context);
  constexpr int32_t kPadding = 9;
  for (int64_t length = 0; length <= 6; ++length) {
    std::vector<int32_t> tokens{1, 2, 0, 4, 5, 0};
    std::fill(tokens.begin() + length, tokens.end(), kPadding);
    const TokenRow row{tokens, length, 0};
    EXPECT_EQ(context.seams.call<LabelSeam>(row), LabelSeam::standard(row)) << length;
  }
}

TEST(LabelCases, MaskedEndsAreNamedInPaddedRows) {
  train::Config config = tiny_config();
  config.pack = false;
  config.seq_len = 48;
  expect_named("labels.eos-masked", config);
}

TEST(LossCases, NormalisationIsNamedWithUnevenMicroBatches) {
  train::Config config = tiny_config();
  config.pack = false;
  config.seq_len = 48;
  config.micro_batch_size = 1;
  expect_named("accum.normalisation", config);
}

// What each of the 100 objectives did to b is there at the end: the state that a fixed run goes
// back to matters.
TEST(LossCases, NormalisationIsPaidForByTheBiasOfEveryStep) {
  const Catalogue catalogue;
  const CaseResult result = run_case(catalogue.select({"accum.normalisation"}).at(0), {});
  const auto bias = [](const RunRecord& run) { return *run.metrics.find("b"); };
  EXPECT_EQ(bias(result.fixed), bias(result.healthy));
  // 100 steps of lr 1e-3 along (e^-2 + e^-1) / 2 - 1, in f32.
  EXPECT_NEAR(bias(result.faulty), 0.1 * (1 - (std::exp(-2) + std::exp(-1)) / 2), 1e-6);
  EXPECT_LT(bias(result.healthy), bias(result.faulty) - 0.005);
}

TEST(LossCases, AMicroBatchWithoutLabelsIsNamedAndNotTakenForNormalisation) {
  train::Config config = tiny_config();
  config.seq_len = 1;
  config.batch_size = 8;
  config.micro_batch_size = 1;
  expect_named("loss.log-zero:all-ignored", config);
}

TEST(LossCases, ALogarithmOfZeroIsNamedWithWideLogits) {
  train::Config config = tiny_config();
  config.init_std = 8;
  expect_named("loss.log-zero:log-of-softmax", config, 3);
}

// Below a gap of 104 the wrong formula and the right one agree: nothing is wrong yet.
TEST(LossCases, TheWrongLogarithmAgreesWhileNothingUnderflows) {
  const Catalogue catalogue;
  Context context;
  const ContextGuard guard(context);
  const Tensor logits = tensor<float>({0, 90, -3, 2}, {1, 2, 2});
  const Tensor labels = tensor<int32_t>({0, kIgnoredLabel}, {1, 2});
  const auto right = nn::TokenLossSeam::standard(logits, labels).to_vector<double>();
  const auto planted = catalogue.find("loss.log-zero:log-of-softmax").plant(context);
  const auto wrong = context.seams.call<nn::TokenLossSeam>(logits, labels).to_vector<double>();
  EXPECT_FLOAT_EQ(static_cast<float>(wrong[0]), 90);
  EXPECT_FLOAT_EQ(static_cast<float>(wrong[0]), static_cast<float>(right[0]));
  EXPECT_EQ(wrong[1], 0);
  EXPECT_EQ(right[1], 0);
}

TEST(EvaluationCases, DropoutIsNamedWhenTheTrainerEvaluates) {
  train::Config config = tiny_config();
  config.dropout = 0.1;
  expect_named("nn.dropout-in-eval", config, 2);
}

// A different seed changes data and initial weights, and no figure that is expected.
TEST(LabelCases, AreVerifiedForOtherSeeds) {
  const Catalogue catalogue;
  for (const char* const pattern :
       {"labels.*", "loss.log-zero", "accum.normalisation", "nn.dropout-in-eval"}) {
    for (const Catalogue::Entry& entry : catalogue.select({pattern})) {
      const CaseResult result = run_case(entry, {.seed = 7});
      EXPECT_EQ(result.why, "") << result.full_name();
    }
  }
}

}  // namespace
}  // namespace faultline::lab
