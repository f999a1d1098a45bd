#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "core/error.h"
#include "lab/planted.h"
#include "lab/run_case.h"
#include "nn/attention.h"
#include "tests/diagnose/watched.h"

// The cases of attention and softmax: verified for any seed, named in training by those who should,
// and what their texts claim beside their figures is so, the answers of the exercises included.
namespace faultline::lab {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class AttentionCase : public testing::TestWithParam<const char*> {};

TEST_P(AttentionCase, IsVerifiedForAnySeed) {
  const Catalogue catalogue;
  const Catalogue::Entry entry{&catalogue.fault_of(GetParam()), &catalogue.find(GetParam())};
  for (const uint64_t seed : {1, 2, 17}) {
    const CaseResult result = run_case(entry, {.seed = seed});
    EXPECT_EQ(result.why, "") << seed;
    const Metrics& metrics = result.faulty.metrics;
    EXPECT_TRUE(!metrics.grids().empty() || !metrics.curves().empty() ||
                entry.variant->name() == "scale-after")
        << "a picture says more";
    if (result.claimed) {
      EXPECT_EQ(result.outcome, Outcome::fails);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ours, AttentionCase,
                         testing::Values("attn.mask-broadcast:b-eq-t", "attn.mask-broadcast:b-eq-h",
                                         "attn.mask-broadcast:query-axis",
                                         "attn.mask-broadcast:inverted",
                                         "attn.mask-broadcast:additive-bool",
                                         "attn.mask-broadcast:additive-float",
                                         "attn.mask-multiply:pre", "attn.mask-multiply:post",
                                         "attn.packing-leak", "softmax.masked-row",
                                         "softmax.overflow:naive", "softmax.overflow:scale-after"));

// ---- in training --------------------------------------------------------------------------------

std::vector<std::string> trained_with(const std::string& fault, const train::Config& config) {
  return diagnose::names_of(diagnose::watched([&](Context& context) {
    const Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (!fault.empty()) planted = catalogue.find(fault).plant(context);
    train::Trainer trainer(config, diagnose::uniform_tokens(20000));
    for (int i = 0; i < 5; ++i) trainer.step();
    trainer.evaluate(2);
    trainer.probe_floor(16);
  }));
}

TEST(AttentionCases, AreNamedInTrainingWherePackedAndWherePadded) {
  train::Config config = diagnose::tiny_config();
  EXPECT_THAT(trained_with("attn.mask-multiply:pre", config),
              ElementsAre("mask.visibility -> attn.mask-multiply"));
  EXPECT_THAT(trained_with("attn.mask-multiply:post", config),
              ElementsAre("attention.row-sums -> attn.mask-multiply"));
  EXPECT_THAT(trained_with("attn.packing-leak", config),
              ElementsAre("attention.documents -> attn.packing-leak"));
  EXPECT_THAT(trained_with("", config), IsEmpty());
  config.pack = false;
  EXPECT_THAT(trained_with("softmax.masked-row", config),
              ElementsAre("softmax.rows -> softmax.masked-row", "finite.first -> "));
  EXPECT_THAT(trained_with("", config), IsEmpty());
}

// With one document a row nothing can leak, with rows of one size nothing is padded.
TEST(AttentionCases, RefuseAConfigurationInWhichTheyCannotShow) {
  const auto refusal = [](const std::string& fault, const char* key, const char* value) {
    train::ConfigBuilder config = train::ConfigBuilder::preset("tiny");
    config.set(key, value, "--set");
    try {
      PlannedFaults({fault}).apply_needs(config);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("planted");
  };
  EXPECT_THAT(refusal("attn.packing-leak", "pack", "false"), HasSubstr("pack=true"));
  EXPECT_THAT(refusal("softmax.masked-row", "pack", "true"), HasSubstr("pack=false"));
  EXPECT_THAT(refusal("attn.mask-broadcast:query-axis", "pack", "true"), HasSubstr("pack=false"));
  EXPECT_THAT(refusal("attn.mask-broadcast:b-eq-t", "batch_size", "8"), HasSubstr("batch_size=48"));
  EXPECT_THAT(refusal("attn.mask-broadcast:b-eq-t", "micro_batch_size", "8"),
              HasSubstr("micro_batch_size=0"));
}

// ---- what the texts claim -----------------------------------------------------------------------

std::vector<double> softmax_of(std::initializer_list<float> scores) {
  return softmax(tensor(scores)).to_vector<double>();
}

TEST(MaskMultiply, GivesTheOtherWeightToAVisibleScoreOfPlusTwo) {
  EXPECT_NEAR(softmax_of({-2, 0})[1], 0.880797, 1e-6);
  EXPECT_NEAR(softmax_of({2, 0})[1], 0.119203, 1e-6);
}

TEST(MaskMultiply, LeavesAThirtySecondOfARowOf32EqualScores) {
  const Catalogue catalogue;
  const auto planted = catalogue.find("attn.mask-multiply:post").plant(Context::current());
  const Tensor x = zeros({1, 1, 32, 1});
  const Tensor out = nn::attention(x, x, ones({1, 1, 32, 1}), {}, {.scale = 1.0});
  EXPECT_EQ(out.to_vector<double>()[0], 1.0 / 32);
}

// A row hidden with a finite number sees everything alike: the mean of 1, 2, 4, 8.
TEST(MaskedRow, ASentinelGivesTheMeanOfAllValues) {
  for (const double sentinel : {-1e4, -1e9}) {
    const Tensor weights = softmax(full({1, 4}, sentinel));
    const Tensor out = matmul(weights, tensor<float>({1, 2, 4, 8}, {4, 1}));
    EXPECT_EQ(out.item<double>(), 3.75);
  }
}

TEST(MaskedRow, SentinelsSaturateInFp16) {
  const auto in_fp16 = [](double x) {
    return cast(full({1}, x, DType::f64), DType::f16).item<double>();
  };
  EXPECT_EQ(in_fp16(-65504 - 16), -INFINITY);
  EXPECT_EQ(in_fp16(-65504 - 15.99), -65504);
  EXPECT_EQ(in_fp16(-1e9), -INFINITY);
}

// The exercise: the output's NaN is overwritten, what comes after it is saved, the values are not.
TEST(MaskedRow, OverwritingTheNaNAfterwardsSavesTheLossAndNotTheValues) {
  const Catalogue catalogue;
  const auto planted = catalogue.find("softmax.masked-row").plant(Context::current());
  const Tensor text = less(arange(4), full({1}, 2, DType::i64));
  const Tensor q = ones({1, 1, 4, 1});
  const Tensor v = tensor<float>({1, 2, 4, 8}, {1, 1, 4, 1});
  const Tensor projection = ones({1, 1});
  set_requires_grad(v);
  set_requires_grad(projection);
  const Tensor out = nn::attention(q, q, v, {.key_valid = reshape(text, {1, 4})}, {.scale = 1.0});
  const Tensor clean = where(isfinite(out), out, zeros({1}));
  const Tensor loss = sum(matmul(clean, projection));
  backward(loss);
  EXPECT_EQ(loss.item<double>(), 2.5);
  EXPECT_EQ(gradient(projection).item<double>(), 2.5);
  EXPECT_THAT(gradient(v).to_vector<double>(), Each(testing::IsNan()));
}

TEST(SoftmaxOverflow, LeavesFp16WhereItsTextSays) {
  const auto product = [](int64_t size, double element, double factor) {
    const Tensor x = full({1, size}, element * factor);
    return cast(matmul(x, transpose(x, 0, 1)), DType::f16).item<double>();
  };
  EXPECT_EQ(product(128, 23, 1), INFINITY);
  EXPECT_EQ(product(128, 22, 1), 61952);
  EXPECT_NEAR(product(128, 23, std::pow(128, -0.25)), 5985, 4);  // a step of fp16 there
  EXPECT_EQ(product(64, 32, 1), INFINITY);
  EXPECT_LT(product(64, 31.9, 1), 65504);
  EXPECT_NEAR(product(64, 32, std::pow(64, -0.25)), 8192, 8);
}

TEST(SoftmaxOverflow, SubtractingTheMaximumChangesNothingElse) {
  const auto weights = softmax_of({89, 0});
  EXPECT_EQ(weights[0], 1);
  EXPECT_NEAR(weights[1], 2.2e-39, 1e-40);
}

}  // namespace
}  // namespace faultline::lab
