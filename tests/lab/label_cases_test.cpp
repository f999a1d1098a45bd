#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
