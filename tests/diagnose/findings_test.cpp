#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/functional.h"
#include "diagnose/detector.h"
#include "diagnose/verdict.h"
#include "io/file_bytes.h"
#include "tests/io/scratch_directory.h"

namespace faultline::diagnose {
namespace {

struct Tick {};

class Reporter : public Watcher {
 public:
  Reporter(Context& context, Findings& findings, const char* detector, double confidence)
      : Watcher(context, findings, detector), confidence_(confidence) {
    on(&Reporter::ticked);
  }

 private:
  void ticked(const Tick&) {
    looked();
    if (confidence_ > 0) report("a.cause", confidence_, "op", "evidence");
  }
  double confidence_;
};

DetectorDefinition reporter(const char* name, double confidence,
                            WatchLevel level = WatchLevel::light) {
  return {name,
          level,
          {{"a.cause", "a mechanism", "a fix", "a refutation"}},
          [name, confidence](Context& context, Findings& findings) {
            return std::make_unique<Reporter>(context, findings, name, confidence);
          }};
}

std::string verdict_of(std::vector<DetectorDefinition> detectors) {
  Context context;
  const ContextGuard guard(context);
  const Watch watch(context, WatchLevel::full, std::move(detectors));
  context.events.emit(Tick{});
  return verdict_json(watch).at("verdict").text();
}

TEST(Findings, RankByConfidenceThenByStep) {
  Findings findings;
  findings.report({"b", "late", 0.9, 7, 0, "", ""});
  findings.report({"c", "hint", 0.3, 1, 0, "", ""});
  findings.report({"a", "early", 0.9, 2, 0, "", ""});
  std::vector<std::string> causes;
  for (const Detection& detection : findings.ranked()) causes.push_back(detection.cause);
  EXPECT_THAT(causes, testing::ElementsAre("early", "late", "hint"));
}

TEST(Findings, KeepTheFirstOfEachCauseByEachDetector) {
  Findings findings;
  findings.report({"a", "x", 0.9, 3, 0, "", ""});
  findings.report({"a", "x", 0.9, 4, 0, "", ""});
  findings.report({"b", "x", 0.9, 5, 0, "", ""});
  ASSERT_EQ(findings.ranked().size(), 2U);
  EXPECT_EQ(findings.ranked()[0].step, 3);
}

TEST(Verdict, IsHealthyWithoutFindingsUndecidedOnHintsAndFaultOtherwise) {
  EXPECT_EQ(verdict_of({reporter("quiet", 0)}), "healthy");
  EXPECT_EQ(verdict_of({reporter("hint", 0.4)}), "undecided");
  EXPECT_EQ(verdict_of({reporter("hint", 0.4), reporter("sure", 0.9)}), "fault");
}

TEST(Verdict, IsUndecidedWhenNothingWasJudged) {
  EXPECT_EQ(verdict_of({}), "undecided");
  EXPECT_EQ(verdict_of({reporter("deep", 0.9, WatchLevel::deep)}), "undecided");
}

// What is wrong without a known cause is no cause, and not healthy either.
TEST(Verdict, IsUndecidedOnTheUnexplainedAndRanksItBehindNamedCauses) {
  Context context;
  const ContextGuard guard(context);
  const Watch watch(context, WatchLevel::full);
  log(zeros({1}));
  const Json verdict = verdict_json(watch);
  EXPECT_EQ(verdict.at("verdict").text(), "undecided");
  EXPECT_TRUE(verdict.at("causes").items().empty());
  ASSERT_EQ(verdict.at("unexplained").items().size(), 1U);
  const Json& found = verdict.at("unexplained").items()[0];
  EXPECT_EQ(found.at("detector").text(), "finite.first");
  EXPECT_EQ(found.at("first").at("op").text(), "log");
  EXPECT_THAT(verdict_text(watch), testing::HasSubstr("without a known cause"));
  EXPECT_TRUE(watch.findings().beyond_hints());

  Findings findings;
  findings.report({"a", "", 0.9, 1, 0, "", ""});
  EXPECT_TRUE(findings.beyond_hints());
  findings.report({"b", "named", 0.3, 5, 0, "", ""});
  EXPECT_EQ(findings.ranked()[0].cause, "named");
}

TEST(Verdict, HasTheShapeOfTheContractAndSaysWhatDidNotRun) {
  Context context;
  const ContextGuard guard(context);
  const Watch watch(context, WatchLevel::full,
                    {reporter("a", 0.6), reporter("b", 0.8), reporter("c", 0.8, WatchLevel::deep)});
  context.step = 12;
  context.events.emit(Tick{});
  const Json verdict = verdict_json(watch);

  ASSERT_EQ(verdict.at("causes").items().size(), 1U);  // one cause, two detectors
  const Json& cause = verdict.at("causes").items()[0];
  EXPECT_EQ(cause.at("id").text(), "a.cause");
  EXPECT_EQ(cause.at("confidence").real(), 0.8);
  EXPECT_EQ(cause.at("mechanism").text(), "a mechanism");
  EXPECT_EQ(cause.at("fix").text(), "a fix");
  EXPECT_EQ(cause.at("first").at("step").integer(), 12);
  EXPECT_EQ(cause.at("first").at("rank").integer(), 0);
  EXPECT_EQ(cause.at("first").at("op").text(), "op");
  EXPECT_EQ(cause.at("evidence").items().size(), 2U);
  EXPECT_EQ(verdict.at("checks_run").items().size(), 2U);
  ASSERT_EQ(verdict.at("checks_skipped").items().size(), 1U);
  EXPECT_EQ(verdict.at("checks_skipped").items()[0].at("id").text(), "c");
  EXPECT_EQ(verdict.at("checks_skipped").items()[0].at("reason").text(), "needs --watch deep");
}

TEST(Verdict, DoesNotCallACheckRunThatHadNothingToJudge) {
  Context context;
  const ContextGuard guard(context);
  const Watch watch(context, WatchLevel::light, {reporter("a", 0)});
  EXPECT_TRUE(verdict_json(watch).at("checks_run").items().empty());
  EXPECT_EQ(verdict_json(watch).at("checks_skipped").items().size(), 1U);
}

TEST(Watch, EndsItsSubscriptions) {
  Context context;
  const ContextGuard guard(context);
  {
    const Watch watch(context, WatchLevel::deep);
    EXPECT_TRUE(context.events.wanted<LaunchEvent>());
  }
  EXPECT_FALSE(context.events.wanted<LaunchEvent>());
}

TEST(Watch, AtLevelOffSubscribesNothing) {
  Context context;
  const ContextGuard guard(context);
  const Watch watch(context, WatchLevel::off);
  EXPECT_FALSE(context.events.wanted<LaunchEvent>());
  EXPECT_THROW(watch_level_from_name("loud"), InvalidArgument);
}

TEST(Detection, SurvivesJson) {
  const Detection detection{"d", "c", 0.1, 5, 2, "o", "e \"quoted\""};
  const Detection again = detection_from_json(to_json(detection));
  EXPECT_EQ(again.confidence, detection.confidence);
  EXPECT_EQ(again.evidence, detection.evidence);
  EXPECT_EQ(again.rank, 2);
}

}  // namespace
}  // namespace faultline::diagnose
