#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "diagnose/shown_attention.h"
#include "lab/catalogue.h"
#include "nn/attention.h"
#include "tests/diagnose/watched.h"

// The detectors that look at attention: each fires on what it is for, names that cause and no
// other, and is silent on its near misses. All detectors watch.
namespace faultline::diagnose {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Attention over random queries and keys with a lab variant planted; "" for none.
std::vector<Detection> attended(const char* fault, const nn::Mask& mask, double deviation = 1,
                                int64_t batch = 2) {
  return watched([&](Context& context) {
    const lab::Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (*fault != 0) planted = catalogue.find(fault).plant(context);
    const Tensor q = normal({batch, 2, 6, 4}, 0, deviation, 1, stream_of("q"));
    const Tensor k = normal({batch, 2, 6, 4}, 0, deviation, 1, stream_of("k"));
    nn::attention(q, k, k, mask, 0.5);
  });
}

// Shows weights for scores as attention does, [1, 1, 2, 2] and causal.
std::vector<Detection> shown(std::initializer_list<float> scores,
                             std::initializer_list<float> weights, DType dtype = DType::f32) {
  return watched([&](Context&) {
    observe("attention",
            {tensor(scores, {1, 1, 2, 2}), cast(tensor(weights, {1, 1, 2, 2}), dtype), Tensor(),
             Tensor()},
            MaskAttributes{true, 0, 1.0});
  });
}

nn::Mask padded(int64_t batch = 2) {
  const Tensor valid = less(arange(6), full({1}, 4, DType::i64));
  return {.key_valid = contiguous(expand(reshape(valid, {1, 6}), {batch, 6}))};
}

// ---- mask.visibility: one violation, several causes ---------------------------------------------

TEST(MaskVisibility, TellsAMaskThatMultipliesFromOneThatIsAddedOrInverted) {
  const auto multiplied = attended("attn.mask-multiply:pre", {});
  EXPECT_THAT(names_of(multiplied), ElementsAre("mask.visibility -> attn.mask-multiply"));
  const auto added = attended("attn.mask-broadcast:additive-bool", {});
  ASSERT_THAT(names_of(added), ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(added[0].evidence, HasSubstr("as if 1 were added to hidden scores"));
  const auto visible = attended("attn.mask-broadcast:additive-float", {});
  ASSERT_THAT(names_of(visible), ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(visible[0].evidence, HasSubstr("as if -1 were added to hidden scores"));
  const auto inverted = attended("attn.mask-broadcast:inverted", {});
  ASSERT_THAT(names_of(inverted), ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(inverted[0].evidence, HasSubstr("hid the opposite"));
}

TEST(MaskVisibility, HoldsItsBoundForLargeAndSmallScores) {
  for (const double deviation : {0.01, 0.1, 3.0, 5.0}) {
    EXPECT_THAT(names_of(attended("attn.mask-multiply:pre", padded(), deviation)),
                ElementsAre("mask.visibility -> attn.mask-multiply"))
        << deviation;
  }
}

TEST(MaskVisibility, NamesTheAxisWhereEachRowIsASoftmaxOverOtherKeys) {
  const auto detections = attended("attn.mask-broadcast:query-axis", padded());
  ASSERT_THAT(names_of(detections), ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(detections[0].evidence, HasSubstr("a softmax, over other keys"));
}

// With scores of 0 a mask that multiplied them and no mask at all have the same weights.
TEST(MaskVisibility, NamesNoCauseWhileTheScoresCannotTellAndTheCauseWhenTheyCan) {
  EXPECT_THAT(names_of(attended("attn.mask-multiply:pre", {}, 0)),
              ElementsAre("mask.visibility -> "));
  const auto detections = watched([](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find("attn.mask-multiply:pre").plant(context);
    for (const double deviation : {0.0, 1.0}) {
      const Tensor q = normal({1, 1, 4, 4}, 0, deviation, 1, 1);
      nn::attention(q, q, q, {}, 0.5);
    }
  });
  EXPECT_THAT(names_of(detections),
              ElementsAre("mask.visibility -> attn.mask-multiply", "mask.visibility -> "));
}

TEST(MaskVisibility, NamesNoCauseThatItsNumbersRefute) {
  const auto detections = shown({0, 0, 0, 0}, {0.9F, 0.1F, 0.3F, 0.7F});
  ASSERT_THAT(names_of(detections), ElementsAre("mask.visibility -> "));
  EXPECT_THAT(detections[0].evidence, HasSubstr("no known way"));
}

// ---- attention.row-sums -------------------------------------------------------------------------

TEST(AttentionRowSums, NamesAMaskThatMultipliesTheWeights) {
  for (const double deviation : {0.0, 0.1, 1.0, 4.0}) {
    EXPECT_THAT(names_of(attended("attn.mask-multiply:post", padded(), deviation)),
                ElementsAre("attention.row-sums -> attn.mask-multiply"))
        << deviation;
  }
}

TEST(AttentionRowSums, NamesNoCauseForAnotherWrongSum) {
  EXPECT_THAT(names_of(shown({0, 0, 0, 0}, {1, 0, 0.5F, 0.25F})),
              ElementsAre("attention.row-sums -> "));
}

TEST(AttentionRowSums, IsSilentOnRoundingOnRowsOfZerosAndOnRightAttention) {
  EXPECT_THAT(shown({0, 1, 2, 3}, {1, 0, 0.26894142F, 0.7310586F}), IsEmpty());
  // In bf16 the two weights become 0.26953125 and 0.73046875; in fp16 their sum is off by 2^-11.
  EXPECT_THAT(shown({0, 1, 2, 3}, {1, 0, 0.26894142F, 0.7310586F}, DType::bf16), IsEmpty());
  EXPECT_THAT(shown({0, 1, 2, 3}, {1, 0, 0.26894142F, 0.7310586F}, DType::f16), IsEmpty());
  nn::Mask nothing_visible = padded();
  nothing_visible.key_valid = less(zeros({2, 6}), zeros({1}));
  EXPECT_THAT(attended("", nothing_visible), IsEmpty());
  EXPECT_THAT(attended("", padded(), 4), IsEmpty());
}

// ---- attention.documents ------------------------------------------------------------------------

Batch packed(std::initializer_list<int32_t> documents) {
  Batch batch;
  batch.inputs = tensor<int32_t>({5, 6, 7, 8, 9, 4}, {1, 6});
  batch.labels = tensor<int32_t>({6, 7, 8, 9, 4, 3}, {1, 6});
  batch.documents = tensor(documents, {1, 6});
  return batch;
}

// Attention as a step runs it for a batch of documents 0 0 0 1 1 1, told `told`.
std::vector<std::string> told(const Tensor& told_documents,
                              const std::function<void(Context&)>& between = {}) {
  return names_of(watched([&](Context& context) {
    const Batch batch = packed({0, 0, 0, 1, 1, 1});
    context.events.emit(train::BatchEvent{1, batch});
    if (between) between(context);
    const Tensor q = normal({1, 2, 6, 4}, 0, 1, 1, 1);
    nn::attention(q, q, q, nn::Mask{.documents = told_documents}, 0.5);
  }));
}

TEST(AttentionDocuments, FiresWhenAttentionIsToldOfNoDocumentsOrOfOthers) {
  const auto alarm = ElementsAre("attention.documents -> attn.packing-leak");
  EXPECT_THAT(told({}), alarm);
  EXPECT_THAT(told(tensor<int32_t>({0, 0, 1, 1, 1, 1}, {1, 6})), alarm);
}

TEST(AttentionDocuments, IsSilentWhenAttentionStaysWithinTheBatchsDocuments) {
  EXPECT_THAT(told(tensor<int32_t>({0, 0, 0, 1, 1, 1}, {1, 6})), IsEmpty());
  EXPECT_THAT(told(tensor<int32_t>({0, 1, 2, 3, 3, 4}, {1, 6})), IsEmpty());  // narrower
}

TEST(AttentionDocuments, KnowsThatEvaluationAndProbesRunOtherBatches) {
  EXPECT_THAT(told({}, [](Context& c) { c.events.emit(train::EvaluationBeginEvent{1}); }),
              IsEmpty());
  EXPECT_THAT(told({},
                   [](Context& c) {
                     c.events.emit(train::StepEndEvent{1, 0, 0, 0, 0});
                   }),
              IsEmpty());
}

// ---- softmax.rows -------------------------------------------------------------------------------

TEST(SoftmaxRows, CountsRowsOfNothingButMinusInfinity) {
  const auto detections = watched([](Context&) {
    const Tensor keep = less(zeros({1, 1, 3, 2}), tensor<float>({1, 0, 0}, {1, 1, 3, 1}));
    softmax(where(keep, zeros({1}), full({1}, -INFINITY)));
  });
  ASSERT_THAT(names_of(detections),
              ElementsAre("softmax.rows -> softmax.masked-row", "finite.first -> "));
  EXPECT_THAT(detections[0].evidence, HasSubstr("2 of 3 rows"));
  EXPECT_THAT(detections[0].evidence, HasSubstr("batch 0, head 0, query 1"));
}

TEST(SoftmaxRows, IsSilentWhereARowSeesOneKeyAndWhereSoftmaxIsToldTheMask) {
  EXPECT_THAT(watched([](Context&) {
                softmax(tensor<float>({0, -INFINITY, -INFINITY}));
                log_softmax(tensor<float>({-1e9F, -1e9F}));
                const Tensor none = less(zeros({1, 2}), zeros({1}));
                masked_softmax(zeros({1, 1, 2, 2}), none, {}, MaskAttributes{});
              }),
              IsEmpty());
}

// ---- finite.first: scores that leave fp16 -------------------------------------------------------

TEST(FiniteFirst, FollowsAnOverflowOfFp16IntoTheSoftmax) {
  const auto detections = watched([](Context&) {
    const Tensor scores = cast(tensor<float>({67712, 1}), DType::f16);
    softmax(cast(scores, DType::f32) * 0.125);
  });
  ASSERT_THAT(names_of(detections),
              ElementsAre("finite.first -> softmax.overflow", "finite.first -> "));
  EXPECT_EQ(detections[0].op, "cast");
  EXPECT_THAT(detections[0].evidence, HasSubstr("65504"));
}

TEST(FiniteFirst, NamesNoCauseForAnOverflowThatNoSoftmaxReads) {
  const auto fired = ElementsAre("finite.first -> ");
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor large = cast(tensor<float>({70000, 1}), DType::f16);
                sum(large);
                softmax(cast(large, DType::f32));  // not the first reader
              })),
              fired);
  EXPECT_THAT(names_of(watched([](Context&) {  // infinite before it was rounded
                softmax(cast(cast(full({2}, INFINITY), DType::f16), DType::f32));
              })),
              fired);
}

TEST(FiniteFirst, IsSilentOnASentinelThatBecomesMinusInfinityInFp16) {
  EXPECT_THAT(watched([](Context&) {
                softmax(cast(cast(tensor<float>({0, -1e9F}), DType::f16), DType::f32));
              }),
              IsEmpty());
}

// ---- loss.below-floor in training ---------------------------------------------------------------

std::vector<Detection> trained(const char* fault, int steps) {
  return watched([&](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find(fault).plant(context);
    train::Trainer trainer(tiny_config(), uniform_tokens(60000));
    for (int i = 0; i < steps; ++i) trainer.step();
    trainer.probe_floor(256);
  });
}

TEST(LossBelowFloor, SeesAMaskThatMultipliesAndLeavesItsNameToTheOneThatSawIt) {
  EXPECT_THAT(names_of(trained("attn.mask-multiply:pre", 200)),
              ElementsAre("mask.visibility -> attn.mask-multiply", "loss.below-floor -> "));
  EXPECT_THAT(names_of(trained("attn.mask-multiply:post", 300)),
              ElementsAre("attention.row-sums -> attn.mask-multiply", "loss.below-floor -> "));
}

// ---- what they read -----------------------------------------------------------------------------

TEST(ShownAttention, ReadsAPartOfALargeTensorAndEveryRowInTurn) {
  Context context;
  const ContextGuard guard(context);
  Launch large;
  const Tensor weights = zeros({2, 4, 256, 256});
  const auto subscription =
      context.events.subscribe<LaunchEvent>([&](const LaunchEvent& e) { large = e.launch; });
  observe("attention", {weights, weights, Tensor(), Tensor()}, MaskAttributes{});
  const ShownAttention shown(large);
  EXPECT_EQ(shown.rows_to_read(0).size() * 256, size_t{1} << 17);
  std::vector<int64_t> read;
  for (int turn = 0; turn < 4; ++turn) {
    for (const int64_t row : shown.rows_to_read(turn)) read.push_back(row);
  }
  std::sort(read.begin(), read.end());
  EXPECT_EQ(std::unique(read.begin(), read.end()) - read.begin(), 2 * 4 * 256);
}

}  // namespace
}  // namespace faultline::diagnose
