#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

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
