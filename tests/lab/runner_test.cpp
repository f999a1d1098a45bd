#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "lab/console.h"
#include "lab/judge.h"
#include "lab/run_case.h"
#include "lab/runner.h"
#include "tests/lab/broken_cases.h"

namespace faultline::lab {
namespace {

using testing::HasSubstr;

const Catalogue& broken() {
  static const DefineFault kDefine[] = {&define_broken_cases};
  static const Catalogue catalogue = Catalogue::of(kDefine);
  return catalogue;
}

Catalogue::Entry entry_of(const Catalogue& catalogue, const std::string& name) {
  return {&catalogue.fault_of(name), &catalogue.find(name)};
}

CaseResult run_broken(const std::string& variant) {
  return run_case(entry_of(broken(), "adamw.step-counter:" + variant), {});
}

// ---- this program as the runner's worker
// --------------------------------------------------------- run_cases executes this test program
// again, with a filter that chooses the test below and two variables that tell it what to run.
// Without them it does nothing.

TEST(LabWorker, RunsOneCase) {
  const char* name = std::getenv("FAULTLINE_TEST_CASE");
  if (name == nullptr) GTEST_SKIP() << "only as a worker";
  const bool ours = std::getenv("FAULTLINE_TEST_OURS") != nullptr;
  run_worker(ours ? Catalogue() : Catalogue::of(std::vector<DefineFault>{&define_broken_cases}),
             name, std::strtoull(std::getenv("FAULTLINE_TEST_SEED"), nullptr, 10));
}

RunnerOptions worker_options(const std::string& name, uint64_t seed, bool ours) {
  RunnerOptions options;
  options.seed = seed;
  options.worker_arguments = {"--gtest_filter=LabWorker.RunsOneCase"};
  options.worker_environment = {"FAULTLINE_TEST_CASE=" + name,
                                "FAULTLINE_TEST_SEED=" + std::to_string(seed)};
  if (ours) options.worker_environment.emplace_back("FAULTLINE_TEST_OURS=1");
  return options;
}

CaseResult in_a_process(const std::string& variant, double deadline_seconds = 60) {
  const std::string name = "adamw.step-counter:" + variant;
  RunnerOptions options = worker_options(name, 1, false);
  options.deadline_seconds = deadline_seconds;
  return run_cases({entry_of(broken(), name)}, options).at(0);
}

TEST(Runner, ReadsBackWhatTheWorkerFound) {
  const CaseResult result = in_a_process("good");
  EXPECT_EQ(result.why, "");
  EXPECT_EQ(result.faulty.metrics.find("counted"), 8);
  ASSERT_EQ(result.faulty.detections.size(), 1U);
  EXPECT_EQ(result.faulty.detections[0].detector, "counter.advances");
}

TEST(Runner, MakesACrashTheFailureOfItsCase) {
  EXPECT_THAT(in_a_process("crash").why, HasSubstr("process crashed"));
  EXPECT_THAT(in_a_process("exit").why, HasSubstr("exit code 7"));
}

TEST(Runner, EndsACaseAtItsDeadline) {
  const CaseResult result = in_a_process("hang", 2);
  EXPECT_THAT(result.why, HasSubstr("not done after 2 s"));
  EXPECT_FALSE(result.verified());
  EXPECT_EQ(result.variant, "hang");
}

TEST(Runner, TellsWhatACaseThrew) {
  EXPECT_THAT(in_a_process("throws").why, HasSubstr("a case went wrong"));
}

TEST(Runner, ReportsInOrderAndGoesOnAfterACrash) {
  // The worker takes its case from the environment, so both entries run "crash" there; what counts
  // here is that two come back, in order.
  std::vector<std::string> seen;
  RunnerOptions options = worker_options("adamw.step-counter:crash", 1, false);
  const auto results =
      run_cases({entry_of(broken(), "adamw.step-counter:hang"),
                 entry_of(broken(), "adamw.step-counter:good")},
                options, [&](const CaseResult& result) { seen.push_back(result.variant); });
  EXPECT_THAT(seen, testing::ElementsAre("hang", "good"));
  EXPECT_EQ(results.size(), 2U);
}

// ---- what the runner fails
// -----------------------------------------------------------------------

TEST(RunCase, VerifiesARightCase) {
  EXPECT_EQ(run_broken("good").why, "");
  EXPECT_EQ(run_broken("fixed-within-bound").why, "");
}

TEST(RunCase, FailsWithoutAFigure) {
  const Fault fault = fault_without_figure();
  const CaseResult result = run_case({&fault, &fault.variants().front()}, {});
  EXPECT_THAT(result.why, HasSubstr("expects no figure"));
}

TEST(RunCase, FailsOnAnotherFigureThanExpected) {
  EXPECT_THAT(run_broken("wrong-figure").why, HasSubstr("counted = 8, expected 9"));
  EXPECT_THAT(run_broken("unknown-figure").why, HasSubstr("no metric 'mistyped'"));
}

TEST(RunCase, FailsWhenTheHealthyRunShowsTheFigure) {
  EXPECT_THAT(run_broken("healthy-shows-figure").why, HasSubstr("healthy run shows the faulty"));
}

TEST(RunCase, FailsOnABoundWithoutReason) {
  EXPECT_THAT(run_broken("bound-without-reason").why, HasSubstr("no reason"));
  EXPECT_THAT(run_broken("fixed-bound-without-reason").why, HasSubstr("no reason"));
}

TEST(RunCase, FailsOnMetricsOfOtherNames) {
  EXPECT_THAT(run_broken("other-metrics").why, HasSubstr("different names"));
}

TEST(RunCase, FailsWhenTheFixedRunLeavesItsBound) {
  EXPECT_THAT(run_broken("fixed-leaves-bound").why, HasSubstr("the fixed run shows m = 1.5"));
  EXPECT_THAT(run_broken("fixed-leaves-own-bound").why, HasSubstr("the fixed run shows m = 1.5"));
}

TEST(RunCase, FailsOnAnAlarmInTheHealthyOrTheFixedRun) {
  EXPECT_THAT(run_broken("healthy-alarms").why, HasSubstr("in the healthy run counter.advances"));
  EXPECT_THAT(run_broken("fixed-alarms").why, HasSubstr("in the fixed run counter.advances"));
}

TEST(RunCase, FailsWhenAnotherDetectorIsFirstOrNone) {
  EXPECT_THAT(run_broken("wrong-detector").why, HasSubstr("first; expected mask.visibility"));
  EXPECT_THAT(run_broken("unseen").why, HasSubstr("no detector fires"));
}

TEST(RunCase, FailsWhenAnotherFaultIsNamedToo) {
  CaseResult result = run_broken("good");
  result.faulty.detections.push_back({"finite.first", "softmax.overflow", 0.6, 1, 0, "", ""});
  const Variant& variant = broken().find("adamw.step-counter:good");
  EXPECT_THAT(why_not_proven(result, variant), HasSubstr("which is not the fault"));
  result.faulty.detections.back().confidence = 0.4;  // a hint
  EXPECT_EQ(why_not_proven(result, variant), "");
  result.faulty.detections.back() = {"finite.first", "", 0.6, 1, 0, "", ""};  // names none
  EXPECT_EQ(why_not_proven(result, variant), "");
}

TEST(RunCase, PlantsAFaultThatBeginsLaterBeforeThatStep) {
  const CaseResult result = run_broken("good");
  EXPECT_EQ(result.faulty.metrics.find("counted"), 1 + 1 + 2 + 2 + 2);
  EXPECT_EQ(result.faulty.detections.at(0).step, 3);
}

// From the state before step 3, where the count is 2, three steps of 1 are left.
TEST(RunCase, ContinuesTheFaultyRunFromItsLastGoodState) {
  EXPECT_EQ(run_broken("good").fixed.metrics.find("counted"), 5);
  EXPECT_THAT(run_broken("begins-and-forgets").why,
              HasSubstr("the fixed run shows counted = 3, the healthy one 5"));
}

TEST(RunCase, FailsWhereTheFixedRunWouldBeTheHealthyOne) {
  const CaseResult result = run_broken("fixed-is-healthy");
  EXPECT_EQ(result.why,
            "a run ended with an error: it has no good state to go back to, so its fixed run would "
            "be the healthy one; give a .remedy, or let the fault begin later with .begins");
  EXPECT_FALSE(result.verified());
}

TEST(RunCase, TakesARemedyOrAReasonInPlaceOfAGoodState) {
  EXPECT_EQ(run_broken("always-remedied").why, "");
  EXPECT_EQ(run_broken("starts-again").why, "");
}

TEST(RunCase, LeavesNoSeamReplaced) {
  Context context;
  const ContextGuard guard(context);
  run_broken("good");
  EXPECT_TRUE(context.seams.replaced().empty());
  EXPECT_EQ(&Context::current(), &context);
}

// ---- claims
// --------------------------------------------------------------------------------------

RunRecord showing(double value, const std::string& detector = "") {
  RunRecord run;
  run.metrics.measure("m", value);
  if (!detector.empty()) run.detections.push_back({detector, "c", 0.9, 1, 0, "", ""});
  return run;
}

TEST(Claim, WorksHidesOrFailsByWhatWasMeasured) {
  Variant variant("f", "v", "t");
  variant.caught_by("d");
  EXPECT_EQ(judge_claim(showing(1), showing(1), variant), Outcome::works);
  EXPECT_EQ(judge_claim(showing(2), showing(1), variant), Outcome::hides);
  EXPECT_EQ(judge_claim(showing(NAN), showing(1), variant), Outcome::hides);
  EXPECT_EQ(judge_claim(showing(1, "d"), showing(1), variant), Outcome::fails);
}

// ---- our cases
// -----------------------------------------------------------------------------------

class OurCases : public testing::TestWithParam<std::string> {};

// Every figure for several seeds; also in a second run, bit by bit.
TEST_P(OurCases, AreVerifiedForEverySeedAndDeterministic) {
  const Catalogue catalogue;
  for (const uint64_t seed : {1, 2, 77}) {
    const CaseResult result = run_case(entry_of(catalogue, GetParam()), {.seed = seed});
    EXPECT_EQ(result.why, "") << "seed " << seed;
    const CaseResult again = run_case(entry_of(catalogue, GetParam()), {.seed = seed});
    EXPECT_TRUE(same_figures(result.faulty, again.faulty, 0)) << "seed " << seed;
    EXPECT_TRUE(same_figures(result.healthy, again.healthy, 0)) << "seed " << seed;
  }
}

std::vector<std::string> our_names() {
  std::vector<std::string> names;
  const Catalogue catalogue;
  for (const auto& entry : catalogue.entries()) names.push_back(entry.variant->full_name());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Lab, OurCases, testing::ValuesIn(our_names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(OurClaims, HoldAClaimOfTheArticleThatFails) {
  const Catalogue catalogue;
  const CaseResult result = run_case(entry_of(catalogue, "attn.mask-broadcast:b-eq-t"), {});
  ASSERT_TRUE(result.claimed.has_value());
  EXPECT_EQ(result.outcome, Outcome::fails);
}

}  // namespace
}  // namespace faultline::lab
