#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "autograd/functional.h"
#include "tests/diagnose/watched.h"

// The detectors of labels and of what is done with them: each fires on a crafted violation and is
// silent on its near miss. All detectors watch.
namespace faultline::diagnose {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- labels.alignment: shifts
// -----------------------------------------------------------------------

// A micro-batch whose loss, if any, asks cross_entropy between the two events.
void micro_batch(Context& context, const Batch& batch,
                 const std::function<void(const Batch&)>& loss = {}) {
  context.events.emit(train::BatchEvent{1, batch});
  if (loss) loss(batch);
  context.events.emit(train::ObjectiveEvent{1, batch.valid_tokens, 1, ones({})});
}

// `count` rows of T + 1 tokens as one batch, with labels made by `rule`.
std::vector<Detection> rows_with(const std::vector<std::vector<int32_t>>& tokens,
                                 const std::function<std::vector<int32_t>(const TokenRow&)>& rule,
                                 int64_t rows_a_batch = 1,
                                 const std::function<void(const Batch&)>& loss = {}) {
  return watched([&](Context& context) {
    const auto planted = context.seams.replace<LabelSeam>(rule);
    std::vector<TokenRow> rows;
    for (const auto& row : tokens) {
      rows.push_back({row, static_cast<int64_t>(row.size()), 0});
      if (static_cast<int64_t>(rows.size()) < rows_a_batch) continue;
      micro_batch(context, make_batch(rows, 0), loss);
      rows.clear();
    }
  });
}

std::vector<int32_t> own(const TokenRow& row) { return {row.tokens.begin(), row.tokens.end() - 1}; }
std::vector<int32_t> twice(const TokenRow& row) {
  std::vector<int32_t> labels = LabelSeam::standard(row);
  labels.erase(labels.begin());
  labels.push_back(kIgnoredLabel);
  return labels;
}
std::vector<int32_t> without_ends(const TokenRow& row) {
  std::vector<int32_t> labels = LabelSeam::standard(row);
  for (int32_t& label : labels) {
    if (label == 0) label = kIgnoredLabel;
  }
  return labels;
}

// first, first + 1, ... within 1 to period, over and over.
std::vector<int32_t> periodic(int64_t length, int32_t period, int32_t first = 1) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>((first - 1 + i) % period) + 1);
  }
  return ids;
}

TEST(LabelsAlignment, NamesADoubleShift) {
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &twice)),
              ElementsAre("labels.alignment -> labels.double-shift"));
  EXPECT_THAT(names_of(rows_with({periodic(33, 3)}, &twice)),
              ElementsAre("labels.alignment -> labels.double-shift"))
      << "periodic text";
}

TEST(LabelsAlignment, CountsOverMicroBatchesThatAreTooSmall) {
  const std::vector<std::vector<int32_t>> rows(20, periodic(5, 100));
  EXPECT_THAT(names_of(rows_with(rows, &twice)),
              ElementsAre("labels.alignment -> labels.double-shift"));
  EXPECT_THAT(names_of(rows_with(rows, &own)), ElementsAre("labels.alignment -> labels.no-shift"));
}

TEST(LabelsAlignment, IsSilentOnRightLabelsOfOddText) {
  for (const int32_t period : {1, 2, 3, 100}) {
    EXPECT_THAT(names_of(rows_with({periodic(33, period)}, &LabelSeam::standard)), IsEmpty())
        << "period " << period;
  }
}

// With "abab" the own token and the one after next are alike: wrong, and nobody knows which.
TEST(LabelsAlignment, NamesNoShiftThatItCannotTellFromAnother) {
  EXPECT_THAT(names_of(rows_with({periodic(33, 2)}, &twice)), IsEmpty());
  EXPECT_THAT(names_of(rows_with({periodic(33, 2)}, &own)), IsEmpty());
}

TEST(LabelsAlignment, IsSilentWhereOneLabelIsNotTheTokenAfterNext) {
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)},
                                 [](const TokenRow& row) {
                                   std::vector<int32_t> labels = twice(row);
                                   labels[7] = 99;
                                   return labels;
                                 })),
              IsEmpty());
}

// ---- labels.alignment: the labels that the loss takes

// Logits of all places, and labels, of which a loss takes [B, T - 1], from these places on.
void loss_of_slice(const Batch& batch, int64_t first_logits, int64_t first_labels) {
  const int64_t T = batch.labels.size(1);
  const Tensor logits = zeros({batch.labels.size(0), T, 128}) + ones({1});
  const Tensor some = slice(logits, 1, first_logits, first_logits + T - 1);
  const Tensor labels = slice(batch.labels, 1, first_labels, first_labels + T - 1);
  cross_entropy_rows(reshape(some, {-1, 128}), reshape(labels, {-1}));
}
void shifting_loss(const Batch& batch) { loss_of_slice(batch, 0, 1); }
void plain_loss(const Batch& batch) { loss_of_slice(batch, 0, 0); }
void loss_without_first(const Batch& batch) { loss_of_slice(batch, 1, 1); }

TEST(LabelsAlignment, NamesADoubleShiftThatHappensInTheLoss) {
  const auto alarm = ElementsAre("labels.alignment -> labels.double-shift");
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &LabelSeam::standard, 1, &shifting_loss)),
              alarm);
  const std::vector<std::vector<int32_t>> rows(6, periodic(9, 100));
  EXPECT_THAT(names_of(rows_with(rows, &LabelSeam::standard, 3, &shifting_loss)), alarm)
      << "several rows a batch";
}

TEST(LabelsAlignment, IsSilentOnLabelsThatOnlyTheLossShifts) {
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &own, 1, &shifting_loss)), IsEmpty());
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &LabelSeam::standard, 1, &plain_loss)),
              IsEmpty());
}

// With labels [B, T - 1] alone this is the double shift above.
TEST(LabelsAlignment, IsSilentOnALossThatLeavesOutTheFirstPlace) {
  EXPECT_THAT(
      names_of(rows_with({periodic(33, 100)}, &LabelSeam::standard, 1, &loss_without_first)),
      IsEmpty());
  const std::vector<std::vector<int32_t>> rows(6, periodic(9, 100));
  EXPECT_THAT(names_of(rows_with(rows, &LabelSeam::standard, 3, &loss_without_first)), IsEmpty())
      << "several rows a batch";
  EXPECT_THAT(names_of(rows_with(rows, &own, 3, &loss_without_first)),
              ElementsAre("labels.alignment -> labels.no-shift"));
}

TEST(LabelsAlignment, FollowsLogitsThroughCastsAndALossInParts) {
  const auto in_halves = [](int64_t first_logits) {
    return [first_logits](const Batch& batch) {
      const int64_t T = batch.labels.size(1);
      const Tensor x = ones({batch.labels.size(0), T, 8}) + ones({1});
      const Tensor some = cast(slice(x, 1, first_logits, first_logits + T - 1), DType::bf16);
      const Tensor logits = linear(reshape(cast(some, DType::f32), {-1, 8}), ones({128, 8}));
      const Tensor labels = reshape(slice(batch.labels, 1, 1, T), {-1});
      const int64_t half = labels.size(0) / 2;
      cross_entropy_rows(slice(logits, 0, 0, half), slice(labels, 0, 0, half));
      const int64_t end = labels.size(0);
      cross_entropy_rows(slice(logits, 0, half, end), slice(labels, 0, half, end));
    };
  };
  const std::vector<std::vector<int32_t>> rows(6, periodic(9, 100));
  EXPECT_THAT(names_of(rows_with(rows, &LabelSeam::standard, 3, in_halves(1))), IsEmpty());
  EXPECT_THAT(names_of(rows_with(rows, &LabelSeam::standard, 3, in_halves(0))),
              ElementsAre("labels.alignment -> labels.double-shift"));
}

TEST(LabelsAlignment, IsSilentOnAPartOfARowThatBeginsAnywhere) {
  const auto of_unknown_origin = [](const Batch& batch) {
    const int64_t T = batch.labels.size(1);
    const Tensor labels = reshape(slice(batch.labels, 1, 1, T), {-1});
    cross_entropy_rows(zeros({labels.size(0), 128}), labels);
  };
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &LabelSeam::standard, 1, of_unknown_origin)),
              IsEmpty());
}

TEST(LabelsAlignment, JudgesAProgramWithoutObjectiveEventsAtItsNextBatch) {
  const auto found = watched([](Context& context) {
    const auto planted = context.seams.replace<LabelSeam>(&own);
    const std::vector<int32_t> tokens = periodic(33, 100);
    const std::vector<TokenRow> rows = {{tokens, static_cast<int64_t>(tokens.size()), 0}};
    const Batch batch = make_batch(rows, 0);
    for (int i = 0; i < 2; ++i) context.events.emit(train::BatchEvent{1, batch});
  });
  EXPECT_THAT(names_of(found), ElementsAre("labels.alignment -> labels.no-shift"));
}

TEST(LabelsAlignment, NamesNoShiftInALossThatDoesNotShift) {
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &own, 1, &plain_loss)),
              ElementsAre("labels.alignment -> labels.no-shift"));
}

TEST(LabelsAlignment, PutsTheLabelsOfALossInPartsTogether) {
  const auto in_parts = [](const Batch& batch) {
    for (const Tensor& labels : split(reshape(batch.labels, {-1}), 5, 0)) {
      cross_entropy_rows(zeros({labels.size(0), 128}), labels);
    }
  };
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &own, 1, in_parts)),
              ElementsAre("labels.alignment -> labels.no-shift"));
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &LabelSeam::standard, 1, in_parts)),
              IsEmpty());
}

TEST(LabelsAlignment, IsSilentOnLabelsThatAreNoShareOfTheRows) {
  const auto twice_asked = [](const Batch& batch) {
    plain_loss(batch);
    plain_loss(batch);
  };
  EXPECT_THAT(names_of(rows_with({periodic(33, 100)}, &own, 1, twice_asked)), IsEmpty());
}

// A leak under a loss that shifts its labels is not taken for labels that nobody shifts.
TEST(LossBelowFloor, NamesNoLabelsThatTheLossShifts) {
  const auto below = [](const std::function<void(const Batch&)>& loss) {
    return names_of(watched([&](Context& context) {
      const auto planted = context.seams.replace<LabelSeam>(&own);
      const std::vector<int32_t> row = periodic(33, 100);
      micro_batch(context, make_batch(std::array{TokenRow{row, 33, 0}}, 0), loss);
      context.events.emit(train::FloorProbeEvent{1, 0.1, std::log(16.0), 0.01, 1000});
    }));
  };
  EXPECT_THAT(below(&shifting_loss), ElementsAre("loss.below-floor -> "));
  EXPECT_THAT(below(&plain_loss), testing::Contains("loss.below-floor -> labels.no-shift"));
}

// ---- labels.alignment: ends
// -------------------------------------------------------------------------

// Documents of four tokens with their ends, `count` of them in a row.
std::vector<int32_t> documents(int count) {
  std::vector<int32_t> row;
  for (int i = 0; i < count; ++i) row.insert(row.end(), {1, 2, 3, 4, 0});
  return row;
}

TEST(LabelsAlignment, NamesEndsThatAreNeverLabels) {
  EXPECT_THAT(names_of(rows_with({documents(10)}, &without_ends)),
              ElementsAre("labels.alignment -> labels.eos-masked"));
  EXPECT_THAT(names_of(rows_with(std::vector(10, documents(2)), &without_ends)),
              ElementsAre("labels.alignment -> labels.eos-masked"))
      << "one end a batch";
}

TEST(LabelsAlignment, SeesTheEndOfADocumentBeforePadding) {
  const auto padded = [](const auto& rule) {
    return names_of(watched([&](Context& context) {
      const auto planted = context.seams.replace<LabelSeam>(rule);
      const std::vector<int32_t> row{1, 2, 3, 4, 0, 0, 0, 0, 0};
      const std::vector<TokenRow> rows(10, TokenRow{row, 5, 0});
      micro_batch(context, make_batch(rows, 0));
    }));
  };
  EXPECT_THAT(padded(&without_ends), ElementsAre("labels.alignment -> labels.eos-masked"));
  EXPECT_THAT(padded(&LabelSeam::standard), IsEmpty());
}

TEST(LabelsAlignment, IsSilentWhereOneEndIsALabelAndOnFewEnds) {
  EXPECT_THAT(names_of(rows_with({documents(10)}, &LabelSeam::standard)), IsEmpty());
  EXPECT_THAT(names_of(rows_with({documents(10)},
                                 [](const TokenRow& row) {
                                   std::vector<int32_t> labels = without_ends(row);
                                   labels[3] = 0;
                                   return labels;
                                 })),
              IsEmpty());
  EXPECT_THAT(names_of(rows_with({documents(8)}, &without_ends)), IsEmpty())
      << "seven ends with something behind them";
}

TEST(LabelsAlignment, IsSilentOnRowsWithoutEndsAndOnRowsThatAreOnlyContext) {
  EXPECT_THAT(names_of(rows_with(std::vector(10, periodic(20, 100)), &without_ends)), IsEmpty());
  EXPECT_THAT(names_of(rows_with({documents(20)},
                                 [](const TokenRow& row) {
                                   return std::vector<int32_t>(row.tokens.size() - 1,
                                                               kIgnoredLabel);
                                 })),
              IsEmpty());
}

// ---- objective.weights
// -----------------------------------------------------------------------------

struct Micro {
  int64_t labels;
  double loss_sum;
  double objective;
};

std::vector<std::string> step_of(const std::vector<Micro>& parts, DType dtype = DType::f32) {
  return names_of(watched([&](Context& context) {
    for (const Micro& part : parts) {
      context.events.emit(
          train::ObjectiveEvent{1, part.labels, part.loss_sum, full({}, part.objective, dtype)});
    }
    context.events.emit(train::StepEndEvent{1, 1, 1, 1, 1});
  }));
}

TEST(ObjectiveWeights, NamesTheMeanOfMeans) {
  const auto alarm = ElementsAre("objective.weights -> accum.normalisation");
  EXPECT_THAT(step_of({{10, 20, 1}, {1000, 1000, 0.5}}), alarm);
  EXPECT_THAT(step_of({{1000, 1000, 0.5}, {1001, 3003, 1.5}}), alarm) << "one label more";
  EXPECT_THAT(step_of({{10, 20, 1024}, {1000, 1000, 512}}), alarm) << "with a loss scale";
}

// Who weighs sequences alike on purpose sees from the message that this is what was found.
TEST(ObjectiveWeights, SaysThatAMeanBySequenceMayBeMeant) {
  const auto detections = watched([&](Context& context) {
    context.events.emit(train::ObjectiveEvent{1, 10, 20, ones({})});
    context.events.emit(train::ObjectiveEvent{1, 1000, 1000, full({}, 0.5)});
    context.events.emit(train::StepEndEvent{1, 1, 1, 1, 1});
  });
  ASSERT_EQ(detections.size(), 1);
  EXPECT_THAT(detections[0].evidence,
              testing::HasSubstr("which is right only where that is meant"));
}

TEST(ObjectiveWeights, IsSilentWhereEveryTokenWeighsTheSame) {
  EXPECT_THAT(step_of({{10, 20, 20.0 / 1010}, {1000, 1000, 1000.0 / 1010}}), IsEmpty());
  EXPECT_THAT(step_of({{10, 20, 64 * 20.0 / 1010}, {1000, 1000, 64 * 1000.0 / 1010}}), IsEmpty())
      << "with a loss scale";
  EXPECT_THAT(step_of({{10, 20, 1}, {10, 7, 0.35}}), IsEmpty()) << "equal lengths";
  EXPECT_THAT(step_of({{10, 20, 2}}), IsEmpty()) << "one micro-batch";
  // bf16 has 8 bits: 1/100 and 1/101 of the same sum may be one number.
  EXPECT_THAT(step_of({{100, 100, 0.5}, {101, 101, 0.5}}, DType::bf16), IsEmpty());
}

TEST(ObjectiveWeights, LeavesWeightsOfAnotherKindAlone) {
  EXPECT_THAT(step_of({{10, 20, 0.2}, {1000, 1000, 0.9}, {500, 500, 0.8}}), IsEmpty());
}

TEST(ObjectiveWeights, NamesADivisionByNoLabels) {
  EXPECT_THAT(step_of({{10, 20, 1}, {0, 0, NAN}, {10, 20, 1}}),
              testing::Contains("objective.weights -> loss.log-zero"));
}

TEST(ObjectiveWeights, IsSilentOnNoLabelsWithObjectiveZeroAndOnANaNOfAnotherOrigin) {
  EXPECT_THAT(step_of({{10, 20, 1}, {0, 0, 0}, {10, 20, 1}}), IsEmpty());
  const auto ours = testing::HasSubstr("objective.weights");
  EXPECT_THAT(step_of({{10, NAN, NAN}, {20, 20, 0.5}}), testing::Not(testing::Contains(ours)));
}

}  // namespace
}  // namespace faultline::diagnose
