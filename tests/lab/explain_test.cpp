#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "lab/case.h"
#include "lab/console.h"
#include "tests/io/scratch_directory.h"

namespace faultline::lab {
namespace {

using testing::HasSubstr;
using testing::Not;

FaultText text() {
  return {.id = "own.fault",
          .title = "the title",
          .domain = "own",
          .seed = "004 3.1",
          .mechanism = "the mechanism",
          .symptom = "the symptom",
          .article_says = "the claim",
          .truth = "the truth",
          .fix = "the fix",
          .sources = {"the source"},
          .look_alikes = "the look-alikes",
          .exercise = "the exercise",
          .answer = "the answer"};
}

Variant& add_variant(Fault& fault, const std::string& name) {
  return fault.variant(name, "title of " + name)
      .wrong([](Context&) { return std::make_shared<int>(0); })
      .run([](const RunOptions&, Metrics& metrics) { metrics.measure("m", 1); })
      .expect("m", 2)
      .caught_by("counter.advances");
}

void define_own(Catalogue& lab) {
  Fault& fault = lab.fault(text());
  add_variant(fault, "a")
      .expect_within("n", 0.5, 0.25, "the reason")
      .claimed("the remedy", [](Context&) { return nullptr; })
      .in_training({.steps = 300, .needs = {{"pack", "false"}, {"batch_size", "2"}}});
  add_variant(fault, "b").in_generation({.needs = {{"kv-pages", "on"}}}).not_in_training("the why");
}

const Catalogue& own() {
  static const DefineFault kDefine[] = {&define_own};
  static const Catalogue catalogue = Catalogue::of(kDefine);
  return catalogue;
}

TEST(Explain, GivesEveryTextOfTheFault) {
  const std::string shown = explain_text(own().fault_of("own.fault"));
  for (const char* part : {"own.fault", "the title", "the mechanism", "the symptom", "the claim",
                           "the truth", "the fix", "the source", "the look-alikes", "the exercise",
                           "the answer", "counter.advances", "004 3.1"}) {
    EXPECT_THAT(shown, HasSubstr(part));
  }
}

TEST(Explain, GivesEachVariantWithItsFiguresAndItsTrainingRun) {
  const std::string shown = explain_text(own().fault_of("own.fault"));
  EXPECT_THAT(shown, HasSubstr("title of a"));
  EXPECT_THAT(shown, HasSubstr("m = 2, n = 0.5"));
  EXPECT_THAT(shown, HasSubstr("the remedy"));
  EXPECT_THAT(shown, HasSubstr("batch_size=2 pack=false"));
  EXPECT_THAT(shown, HasSubstr("    faultline train tiny --steps 300 --fault own.fault:a --watch "
                               "full --out DIR\n"));
  EXPECT_THAT(shown, HasSubstr("no: the why"));
}

TEST(Explain, TellsOfOneVariantAlone) {
  const Fault& fault = own().fault_of("own.fault:b");
  const std::string shown = explain_text({&fault, &own().find("own.fault:b")}, 80);
  EXPECT_THAT(shown, HasSubstr("title of b"));
  EXPECT_THAT(shown, HasSubstr("the mechanism"));
  EXPECT_THAT(shown, Not(HasSubstr("title of a")));
}

TEST(Explain, GivesAPageAllThatItNeeds) {
  const Json json = explain_json(own().fault_of("own.fault"));
  EXPECT_EQ(json.at("look_alikes").text(), "the look-alikes");
  EXPECT_EQ(json.at("exercise").text(), "the exercise");
  EXPECT_EQ(json.at("answer").text(), "the answer");
  EXPECT_EQ(json.at("variants").to_text(), R"(["a","b"])");
  const Json& form = json.at("forms").items().at(0);
  EXPECT_EQ(form.at("detector").text(), "counter.advances");
  EXPECT_EQ(form.at("expected").items().at(1).to_text(),
            R"({"name":"n","value":0.5,"bound":0.25,"reason":"the reason"})");
  EXPECT_EQ(form.at("training").to_text(),
            R"({"steps":300,"needs":{"batch_size":"2","pack":"false"}})");
  EXPECT_EQ(form.at("claimed").text(), "the remedy");
  EXPECT_EQ(form.at("generation").to_text(), "null");
  const Json& other = json.at("forms").items().at(1);
  EXPECT_EQ(other.at("no_training").text(), "the why");
  EXPECT_EQ(other.at("generation").to_text(), R"({"needs":{"kv-pages":"on"}})");
  const Json& detector = json.at("detectors").items().at(0);
  EXPECT_EQ(detector.at("name").text(), "counter.advances");
  EXPECT_FALSE(detector.at("causes").items().at(0).at("refuted_by").text().empty());
}

TEST(Explain, GivesAVariantAloneAsJsonToo) {
  const Fault& fault = own().fault_of("own.fault");
  const Json json = explain_json({&fault, &own().find("own.fault:b")});
  EXPECT_EQ(json.at("variants").to_text(), R"(["b"])");
  ASSERT_EQ(json.at("forms").items().size(), 1U);
  EXPECT_EQ(json.at("forms").items().at(0).at("title").text(), "title of b");
  EXPECT_EQ(json.at("mechanism").text(), "the mechanism");
}

TEST(Explain, ListsTheFaultsDomainByDomainWithoutAnId) {
  const Catalogue catalogue;
  const std::string shown = faults_text(catalogue, 80);
  for (const Fault& fault : catalogue.faults()) {
    EXPECT_THAT(shown, HasSubstr("  " + fault.text().id + " "));
    EXPECT_THAT(shown, HasSubstr(fault.text().domain + "\n"));
  }
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(Console, ShowsACountToItsLastDigit) {
  CaseResult result;
  for (RunRecord* run : {&result.healthy, &result.faulty, &result.fixed}) {
    run->metrics.count("counted", -0x1p63);
  }
  EXPECT_THAT(case_text(result), HasSubstr("-9223372036854775808 counted"));
}

// ---- a case with a mistake, at the start of every command

std::string refusal(DefineFault define) {
  return error_of<InvalidArgument>([&] { Catalogue::of(std::vector<DefineFault>{define}); });
}

TEST(Catalogue, RefusesACaseWithoutAFigure) {
  const std::string said = refusal([](Catalogue& lab) {
    lab.fault(text())
        .variant("v", "t")
        .wrong([](Context&) { return nullptr; })
        .run([](const RunOptions&, Metrics&) {})
        .caught_by("counter.advances");
  });
  EXPECT_THAT(said, HasSubstr("case own.fault:v: expects no figure"));
}

TEST(Catalogue, RefusesADetectorThatThereIsNot) {
  const std::string said = refusal(
      [](Catalogue& lab) { add_variant(lab.fault(text()), "v").caught_by("counter.advance"); });
  EXPECT_THAT(said, HasSubstr("case own.fault:v: no detector is named 'counter.advance'"));
  EXPECT_THAT(said, HasSubstr("'counter.advances'"));
}

TEST(Catalogue, TakesADetectorOfItsOwner) {
  const DefineFault define[] = {
      [](Catalogue& lab) { add_variant(lab.fault(text()), "v").caught_by("own.detector"); }};
  const diagnose::DetectorDefinition detector{
      "own.detector", diagnose::WatchLevel::light, {}, nullptr};
  EXPECT_EQ(Catalogue::of(define, {detector}).entries().size(), 1U);
}

}  // namespace
}  // namespace faultline::lab
