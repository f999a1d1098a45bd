#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "lab/catalogue.h"
#include "lab/run_case.h"

// What the cases of sums, norms and updates in few bits show beyond the figures that they expect.
namespace faultline::lab {
namespace {

CaseResult run(const std::string& name, uint64_t seed = 1) {
  const Catalogue catalogue;
  return run_case({&catalogue.fault_of(name), &catalogue.find(name)}, {.seed = seed});
}

double figure(const RunRecord& run, const char* metric) { return *run.metrics.find(metric); }

TEST(Bf16Accumulate, AllVariantsAreProvenWithEverySeed) {
  for (const char* name : {"bf16.accumulate:swallow", "bf16.accumulate:poison",
                           "bf16.accumulate:ln-variance", "bf16.accumulate:fp16-eps"}) {
    for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(run(name, seed).why, "") << name << seed;
  }
}

// sum (x - mean)^2 / 8 of five values 2^-7 above the other three is 2^-14 * 15 / 64.
TEST(Bf16Accumulate, TheVarianceThatBf16MissesIsTheExactOne) {
  EXPECT_NEAR(figure(run("bf16.accumulate:ln-variance").healthy, "variance"), 0x1p-14 * 15 / 64,
              1e-9);  // rstd is an f32
}

TEST(Bf16Accumulate, AnomalyDetectionSeesNeitherASumThatStopsNorOneThatOverflows) {
  for (const char* name : {"bf16.accumulate:swallow", "bf16.accumulate:poison"}) {
    EXPECT_EQ(run(name).outcome, Outcome::fails) << name;
  }
}

// The remedy keeps the sum in bf16, so it is no f32 buffer under another name: 1 + 255 * 2^-10 is
// 1.249, where bf16 alone stays at 1.
TEST(Bf16Accumulate, SwallowIsMendedWithinBf16) {
  const Catalogue catalogue;
  const Variant& variant = catalogue.find("bf16.accumulate:swallow");
  Context context;
  const ContextGuard guard(context);
  const auto wrong = variant.plant(context);
  const auto remedy = variant.remedy_plant()(context);
  const Tensor weight = ones({1});
  set_requires_grad(weight);
  backward(sum(weight));
  for (int i = 0; i < 255; ++i) backward(sum(weight * 0x1p-10));
  EXPECT_EQ(gradient(weight).dtype(), DType::bf16);
  EXPECT_NEAR(gradient(weight).item<double>(), 1 + 255 * 0x1p-10, 0x1p-8);  // half a spacing
}

// Weights in fp16 take 20 updates of 1e-3 as 20 of 2^-10; the framework's own AdamW takes them as
// they are.
TEST(AdamFp16Eps, IsFixedWithWeightsThatStayInFp16) {
  const CaseResult result = run("adam.fp16-eps");
  for (const char* weight : {"w(0.1)", "w(1e-5)"}) {
    EXPECT_EQ(figure(result.fixed, weight), 1 - 20 * 0x1p-10) << weight;
    EXPECT_NE(figure(result.healthy, weight), figure(result.fixed, weight)) << weight;
  }
}

TEST(AdamFp16Eps, IsProvenAndALargerEpsilonHidesItAtEightyFourLearningRates) {
  const CaseResult result = run("adam.fp16-eps");
  EXPECT_EQ(result.why, "");
  EXPECT_EQ(result.outcome, Outcome::hides);
  ASSERT_TRUE(result.claimed);
  // 20 steps of lr 1e-3; m / (1 - beta1^t) = 1e-5 and 1e-7 is 2^-23 in fp16. The moment itself is
  // rounded to fp16, by up to 2^-25 of about 1e-6 at the first step.
  const double steps = (1 - figure(*result.claimed, "w(1e-5)")) / 1e-3;
  EXPECT_NEAR(steps / 20, 1e-5 / 0x1p-23, 3);
}

TEST(Bf16WeightsFrozen, IsProvenWithEachOfThreeRemedies) {
  for (const char* name :
       {"bf16.weights-frozen", "bf16.weights-frozen:kahan", "bf16.weights-frozen:stochastic"}) {
    EXPECT_EQ(run(name).why, "") << name;
  }
}

TEST(PrecisionCases, WaitForMixedPrecisionBeforeTheyEnterTraining) {
  const Catalogue catalogue;
  for (const char* name : {"bf16.accumulate:poison", "adam.fp16-eps", "bf16.weights-frozen"}) {
    EXPECT_FALSE(catalogue.find(name).has_training_form()) << name;
  }
}

}  // namespace
}  // namespace faultline::lab
