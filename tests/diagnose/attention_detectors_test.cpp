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

constexpr auto kMath =
    nn::AttentionPolicy{nn::AttentionPolicy::Kind::require, nn::AttentionImplementation::math};

// Attention by math, which shows its weights, over random queries and keys with a lab variant
// planted; "" for none.
std::vector<Detection> attended(const char* fault, const nn::Mask& mask, double deviation = 1,
                                int64_t batch = 2) {
  return watched([&](Context& context) {
    const lab::Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (*fault != 0) planted = catalogue.find(fault).plant(context);
    const Tensor q = normal({batch, 2, 6, 4}, 0, deviation, 1, stream_of("q"));
    const Tensor k = normal({batch, 2, 6, 4}, 0, deviation, 1, stream_of("k"));
    nn::attention(q, k, k, mask, {.scale = 0.5, .policy = kMath});
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

TEST(MaskVisibility, NamesTheAxisThatTheMaskMetByMistake) {
  nn::Mask lengths = padded();
  lengths.key_valid = less(reshape(arange(6), {1, 6}), tensor<int64_t>({4, 2}, {2, 1}));
  const auto says = [](const std::vector<Detection>& detections, const char* what) {
    ASSERT_THAT(names_of(detections), ElementsAre("mask.visibility -> attn.mask-broadcast"));
    EXPECT_THAT(detections[0].evidence, HasSubstr(what));
  };
  says(attended("attn.mask-broadcast:query-axis", padded()), "were one of [batch, query]");
  says(attended("attn.mask-broadcast:b-eq-h", lengths), "were one of [head, query, key]");
  nn::Mask six = padded(6);
  six.key_valid = less(reshape(arange(6), {1, 6}), tensor<int64_t>({6, 1, 4, 2, 5, 3}, {6, 1}));
  six.causal = false;
  says(attended("attn.mask-broadcast:b-eq-t", six, 1, 6), "were one of [query, key]");
}

// What attention shows when somebody else computes the weights, in f32.
std::vector<Detection> weighted(const nn::Mask& mask,
                                nn::AttentionWeightsSeam::Signature* weights) {
  return watched([&](Context& context) {
    const auto replaced = context.seams.replace<nn::AttentionWeightsSeam>(weights);
    const Tensor q = normal({2, 2, 6, 4}, 0, 1, 1, stream_of("q"));
    const Tensor k = normal({2, 2, 6, 4}, 0, 1, 1, stream_of("k"));
    nn::attention(q, k, k, mask, {.scale = 0.5});
  });
}

TEST(MaskVisibility, NamesTheMasksThatAreTransposedOrHideTheText) {
  const auto transposed = weighted({}, [](const Tensor& scores, const nn::Mask&, double scale) {
    const Tensor keep = less_equal(reshape(arange(6), {6, 1}), reshape(arange(6), {1, 6}));
    return softmax(where(keep, scores * scale, full({1}, -1e4)));
  });
  ASSERT_THAT(names_of(transposed), ElementsAre("mask.visibility -> attn.mask-broadcast"));
  EXPECT_THAT(transposed[0].evidence, HasSubstr("were one of [key, query]"));

  nn::Mask mask = padded();
  mask.causal = false;
  const auto text = weighted(mask, [](const Tensor& scores, const nn::Mask& m, double scale) {
    const Tensor keep = reshape(logical_not(m.key_valid), {2, 1, 1, 6});
    return softmax(where(keep, scores * scale, full({1}, -1e4)));
  });
  ASSERT_THAT(names_of(text), ElementsAre("mask.visibility -> attn.mask-broadcast"));
}

// Each row is a softmax over some keys, and no axis that was swapped says why over these: the mask
// of a window, and rows that see nothing, which a finite sentinel makes equal.
TEST(MaskVisibility, NamesNoCauseForASoftmaxOverKeysThatNoSwappedAxisExplains) {
  const auto window = weighted({}, [](const Tensor& scores, const nn::Mask&, double scale) {
    const Tensor keep = less_equal(reshape(arange(6, -2), {1, 6}), reshape(arange(6), {6, 1}));
    return softmax(where(keep, scores * scale, full({1}, -1e4)));
  });
  ASSERT_THAT(names_of(window), ElementsAre("mask.visibility -> "));
  EXPECT_THAT(window[0].evidence, HasSubstr("no known way"));

  nn::Mask nothing_visible = padded();
  nothing_visible.key_valid = less(reshape(arange(6), {1, 6}), tensor<int64_t>({4, 0}, {2, 1}));
  const auto sentinel = weighted(nothing_visible, [](const Tensor& scores, const nn::Mask& m,
                                                     double scale) {
    const std::vector<uint8_t> visible = nn::visibility(m, 2, 6, 6);
    const Tensor keep = tensor(std::vector<float>(visible.begin(), visible.end()), {2, 1, 6, 6});
    return softmax(where(cast(keep, DType::boolean), scores * scale, full({1}, -1e4)));
  });
  ASSERT_THAT(names_of(sentinel), ElementsAre("mask.visibility -> "));
  EXPECT_THAT(sentinel[0].evidence, HasSubstr("a finite sentinel"));
}

// The detector spells the rule of the mask by itself, so that right attention under every rule is
// silent, and attention that forgets the window is not.
TEST(MaskVisibility, KnowsWindowsPrefixesAndSinks) {
  const nn::Mask kMasks[] = {{.window = 2},
                             {.causal = false, .window = 2},
                             {.prefix = 3},
                             {.window = 2, .prefix = 1, .sinks = 3}};
  for (const nn::Mask& mask : kMasks) {
    const Tensor q = normal({2, 2, 6, 4}, 0, 1, 1, 1);
    EXPECT_THAT(watched([&](Context&) { nn::attention(q, q, q, mask, {.scale = 0.5}); }),
                IsEmpty());
  }
  const auto forgotten =
      weighted({.window = 2}, [](const Tensor& scores, const nn::Mask& mask, double scale) {
        nn::Mask causal = mask;
        causal.window = 0;
        return nn::AttentionWeightsSeam::standard(scores, causal, scale);
      });
  ASSERT_THAT(names_of(forgotten), ElementsAre("mask.visibility -> "));
  EXPECT_THAT(forgotten[0].evidence, HasSubstr("outside of the window"));
}

// In 16 bits a weight far below the largest is 0 without any mask, and every weight is rounded.
TEST(MaskVisibility, IsSilentOnRightAttentionIn16BitsWithLargeScoresAndPadding) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const double largest : {1.0, 5.0, 20.0, 80.0}) {
      EXPECT_THAT(watched([&](Context&) {
                    const Tensor scores = uniform({2, 2, 6, 6}, -largest, largest, 1, 1);
                    const nn::Mask mask = padded();
                    const Tensor kept = cast(scores, dtype);
                    const MaskAttributes attributes{true, 0, 1.0};
                    const Tensor weights = masked_softmax(kept, mask.key_valid, {}, attributes);
                    observe("attention", {kept, weights, mask.key_valid, Tensor()}, attributes);
                  }),
                  IsEmpty())
          << name(dtype) << ", scores to " << largest;
    }
  }
}

// The same scores without the mask are seen in 16 bits too, and the reason where rounding lets.
TEST(MaskVisibility, NamesAMultiplyingMaskIn16Bits) {
  for (const double largest : {1.0, 5.0, 20.0}) {
    const auto detections = watched([&](Context&) {
      const Tensor scores = cast(uniform({2, 2, 6, 6}, -largest, largest, 1, 1), DType::f16);
      const Tensor keep = less_equal(reshape(arange(6), {1, 6}), reshape(arange(6), {6, 1}));
      const Tensor weights = softmax(scores * cast(keep, DType::f16));
      observe("attention", {scores, weights, Tensor(), Tensor()}, MaskAttributes{true, 0, 1.0});
    });
    EXPECT_THAT(names_of(detections), ElementsAre("mask.visibility -> attn.mask-multiply"))
        << largest;
  }
}

TEST(MaskVisibility, SeesAVisibleKeyWithoutWeight) {
  EXPECT_THAT(names_of(shown({0, 0, 0, 0}, {1, 0, 1, 0})), ElementsAre("mask.visibility -> "));
  // exp(-100) has no place in f32, and a softmax of 100 as it stands loses keys without any mask.
  EXPECT_THAT(shown({0, 0, 0, -100}, {1, 0, 1, 0}), IsEmpty());
  EXPECT_THAT(shown({0, 0, 100, 99}, {1, 0, 1, 0}, DType::f32), IsEmpty());
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
      nn::attention(q, q, q, {}, {.scale = 0.5});
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

// What flash keeps of a row that sees nothing is -infinity; every detector has to know.
TEST(FiniteFirst, IsSilentOnRowsThatSeeNothingInEitherImplementation) {
  using enum nn::AttentionImplementation;
  for (const auto which : {math, flash}) {
    EXPECT_THAT(names_of(watched([&](Context&) {
                  const Tensor q = normal({2, 2, 6, 4}, 0, 1, 1, 1);
                  set_requires_grad(q);
                  const Tensor hidden = less(zeros({2, 6}), zeros({1}));
                  const auto policy = nn::AttentionPolicy::require(which);
                  backward(sum(nn::attention(q, q, q, {.key_valid = hidden}, {.policy = policy})));
                })),
                IsEmpty());
  }
}

// ---- attention.documents ------------------------------------------------------------------------

Batch packed(std::initializer_list<int32_t> documents) {
  Batch batch;
  batch.inputs = tensor<int32_t>({5, 6, 7, 8, 9, 4}, {1, 6});
  batch.labels = tensor<int32_t>({6, 7, 8, 9, 4, 3}, {1, 6});
  batch.documents = tensor(documents, {1, 6});
  return batch;
}

// Attention as a step runs it for a batch of documents 0 0 0 1 1 1, told `told`. Both
// implementations have to lead to the same verdict.
std::vector<std::string> told_by(nn::AttentionImplementation which, const Tensor& told_documents,
                                 const std::function<void(Context&)>& between) {
  return names_of(watched([&](Context& context) {
    const Batch batch = packed({0, 0, 0, 1, 1, 1});
    context.events.emit(train::BatchEvent{1, batch});
    if (between) between(context);
    const Tensor q = normal({1, 2, 6, 4}, 0, 1, 1, 1);
    nn::attention(q, q, q, nn::Mask{.documents = told_documents},
                  {.scale = 0.5, .policy = nn::AttentionPolicy::require(which)});
  }));
}
std::vector<std::string> told(const Tensor& told_documents,
                              const std::function<void(Context&)>& between = {}) {
  using enum nn::AttentionImplementation;
  const auto verdict = told_by(math, told_documents, between);
  EXPECT_EQ(told_by(flash, told_documents, between), verdict);
  return verdict;
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

// ---- finite.first: softmax without the maximum subtracted ---------------------------------------

// What is said of softmax as exp / sum over these scores, or of another op on them.
std::vector<std::string> naive(
    const std::vector<float>& scores,
    const std::function<Tensor(const Tensor&)>& op = [](const Tensor& x) { return softmax(x); }) {
  return names_of(watched([&](Context& context) {
    const lab::Catalogue catalogue;
    const auto planted = catalogue.find("softmax.overflow:naive").plant(context);
    const auto size = static_cast<int64_t>(scores.size());
    op(tensor(scores, {1, 1, 1, size}));
  }));
}

TEST(FiniteFirst, NamesTheOverflowOfExp) {
  const auto overflow = ElementsAre("finite.first -> softmax.overflow");
  EXPECT_THAT(naive({89, 0}), overflow);
  EXPECT_THAT(naive({88.5F, 89}), overflow);
  EXPECT_THAT(naive({88.5F}), IsEmpty());
  // Hidden keys count nothing, by -infinity or by the mask.
  EXPECT_THAT(naive({89, -INFINITY}), overflow);
  const auto causal = [](const Tensor& x) {
    return masked_softmax(x, {}, {}, MaskAttributes{true, 0, 1.0});
  };
  EXPECT_THAT(naive({89, INFINITY}, causal), overflow);
  EXPECT_THAT(naive({0, 1000}, causal), IsEmpty());
}

TEST(FiniteFirst, NamesNoCauseWhereNoScoreIsLarge) {
  const auto place_only = ElementsAre("finite.first -> ");
  EXPECT_THAT(naive({-200, -201}), place_only);  // 0 / 0
  EXPECT_THAT(naive({0, INFINITY}), place_only);
  EXPECT_THAT(naive({0, NAN}), place_only);
  EXPECT_THAT(naive({-INFINITY, -INFINITY}),
              ElementsAre("softmax.rows -> softmax.masked-row", "finite.first -> "));
  EXPECT_THAT(naive({1, 2},
                    [](const Tensor& x) {
                      const Tensor none = less(zeros({1, 2}), zeros({1}));
                      return masked_softmax(x, none, {}, MaskAttributes{false, 0, 1.0});
                    }),
              place_only);
}

TEST(FiniteFirst, NamesNoCauseForLogitsThatOverflowFp16) {
  EXPECT_THAT(names_of(watched([](Context&) {
                const Tensor x = cast(full({2, 2}, 256), DType::f16);
                log_softmax(cast(matmul(x, x), DType::f32));
              })),
              ElementsAre("finite.first -> "));
  EXPECT_THAT(names_of(watched([](Context&) {  // only -infinity: a softmax takes it for hidden
                const Tensor x = cast(tensor<float>({256, 256, 0, 0}, {2, 2}), DType::f16);
                const Tensor y = cast(tensor<float>({-256, 0, -256, 0}, {2, 2}), DType::f16);
                softmax(cast(matmul(x, y), DType::f32));
              })),
              ElementsAre("finite.first -> "));
}

TEST(FiniteFirst, IsNotBlindedByAnInfinityThatSomebodyMeant) {
  const auto both = ElementsAre("finite.first -> softmax.overflow", "finite.first -> ");
  EXPECT_THAT(naive({89, 0},
                    [](const Tensor& x) {
                      minimum(x, full({1}, INFINITY));
                      return softmax(x);
                    }),
              both);
  EXPECT_THAT(names_of(watched([](Context&) {
                full({1}, INFINITY);
                softmax(cast(cast(tensor<float>({67712, 1}), DType::f16), DType::f32));
              })),
              both);
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
