#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "lab/case.h"
#include "lab/console.h"
#include "tests/diagnose/watched.h"
#include "tests/io/scratch_directory.h"

namespace faultline::lab {
namespace {

using testing::HasSubstr;

template <class Action>
std::string refusal(Action&& action) {
  return error_of<InvalidArgument>(std::forward<Action>(action));
}

std::vector<std::string> names_of(const std::vector<Catalogue::Entry>& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.variant->full_name());
  return names;
}

TEST(Catalogue, FindsAVariantByItsName) {
  const Catalogue catalogue;
  EXPECT_EQ(catalogue.find("adamw.step-counter:bf16").name(), "bf16");
  EXPECT_EQ(catalogue.find("labels.no-shift").name(), "");
}

TEST(Catalogue, SuggestsTheNearestName) {
  const Catalogue catalogue;
  EXPECT_THAT(refusal([&] { catalogue.find("adamw.step-countr"); }),
              HasSubstr("'adamw.step-counter'"));
  EXPECT_THAT(refusal([&] { catalogue.find("adamw.step-counter:nothing"); }),
              HasSubstr("adamw.step-counter"));
  EXPECT_THAT(refusal([&] { catalogue.find("attn.mask-broadcast"); }), HasSubstr("b-eq-t, b-eq-h"));
  EXPECT_THAT(refusal([&] { catalogue.select({}, "atention"); }), HasSubstr("attention"));
}

TEST(Catalogue, SelectsByIdVariantGlobAndDomainEachOnce) {
  const Catalogue catalogue;
  EXPECT_EQ(catalogue.select({"attn.mask-broadcast"}).size(), 6U);
  EXPECT_THAT(names_of(catalogue.select({"*:b-eq-?", "attn.mask-broadcast:b-eq-t"})),
              testing::ElementsAre("attn.mask-broadcast:b-eq-t", "attn.mask-broadcast:b-eq-h"));
  EXPECT_THAT(names_of(catalogue.select({}, "data")), testing::Contains("labels.no-shift"));
  EXPECT_THAT(names_of(catalogue.select({}, "data")),
              testing::Not(testing::Contains("softmax.overflow:naive")));
  EXPECT_EQ(catalogue.select({}).size(), catalogue.entries().size());
  EXPECT_THAT(refusal([&] { catalogue.select({"nothing.*"}); }), HasSubstr("no fault is named"));
}

TEST(Catalogue, SaysWhyAFaultHasNoTrainingForm) {
  const Catalogue catalogue;
  EXPECT_THAT(refusal([&] { catalogue.find("bf16.accumulate:swallow").training(); }),
              HasSubstr("bf16.accumulate:swallow: cannot be planted"));
  EXPECT_EQ(catalogue.find("adamw.step-counter:bf16").training().steps, 400);
}

FaultText text_of(const char* id) {
  return {.id = id,
          .title = "t",
          .domain = "own",
          .mechanism = "m",
          .symptom = "s",
          .truth = "t",
          .fix = "f"};
}

void define_own(Catalogue& lab) {
  lab.fault(text_of("own.fault"))
      .only_variant()
      .wrong([](Context&) { return std::make_shared<int>(0); })
      .run([](const RunOptions&, Metrics& metrics) { metrics.measure("m", 1); })
      .expect("m", 2)
      .caught_by("counter.advances");
}
void define_duplicate(Catalogue& lab) { lab.fault(text_of("labels.no-shift")); }
void define_twice_named(Catalogue& lab) {
  Fault& fault = lab.fault(text_of("own.twice"));
  fault.variant("a", "t");
  fault.variant("a", "t");
}
void define_no_run(Catalogue& lab) {
  lab.fault(text_of("own.empty")).only_variant().wrong([](Context&) { return nullptr; });
}

TEST(Catalogue, TakesFaultsFromOutsideOfTheTree) {
  const DefineFault own[] = {&define_own};
  const Catalogue catalogue(own);
  EXPECT_EQ(catalogue.find("own.fault").title(), "t");
  EXPECT_EQ(catalogue.entries().size(), Catalogue().entries().size() + 1);
}

TEST(Catalogue, RefusesACaseWithAMistakeAndNamesIt) {
  const auto refused = [](DefineFault define) {
    return refusal([&] { Catalogue(std::vector<DefineFault>{define}); });
  };
  EXPECT_THAT(refused(&define_duplicate), HasSubstr("labels.no-shift: another case"));
  EXPECT_THAT(refused(&define_twice_named), HasSubstr("two variants 'a'"));
  EXPECT_THAT(refused(&define_no_run), HasSubstr("own.empty: has nothing to run"));
}

TEST(Catalogue, GivesEachFaultTheWholeOfItsText) {
  const Catalogue catalogue;
  for (const Fault& fault : catalogue.faults()) {
    EXPECT_GE(fault.text().sources.size(), 2U)
        << fault.text().id << ": name at least two dated sources";
    const Json json = explain_json(fault);
    for (const char* key : {"id", "title", "mechanism", "symptom", "article_says", "truth", "fix",
                            "detector", "sources", "variants"}) {
      EXPECT_NE(json.find(key), nullptr) << key;
    }
  }
}

// ---- planting
// ------------------------------------------------------------------------------------

TEST(Catalogue, HoldsEveryFaultThatADetectorNames) {
  const Catalogue catalogue;
  for (const diagnose::DetectorDefinition& detector : diagnose::all_detectors()) {
    for (const diagnose::Cause& cause : detector.causes) {
      EXPECT_EQ(catalogue.fault_of(cause.id).text().id, cause.id) << detector.name;
    }
  }
}

TEST(Planting, IsScopedToItsGuardAndItsContext) {
  const Catalogue catalogue;
  Context bystander;
  for (const auto& [fault, variant] : catalogue.entries()) {
    Context context;
    const ContextGuard guard(context);
    {
      const auto planted = variant->plant(context);
      // A replacement, or an observer.
      EXPECT_TRUE(!context.seams.replaced().empty() || context.events.wanted<nn::ForwardEvent>())
          << variant->full_name();
      EXPECT_TRUE(bystander.seams.replaced().empty());
    }
    EXPECT_TRUE(context.seams.replaced().empty()) << variant->full_name();
    EXPECT_FALSE(context.events.wanted<nn::ForwardEvent>()) << variant->full_name();
  }
}

std::vector<double> losses(const std::function<void(Context&)>& before) {
  Context context;
  const ContextGuard guard(context);
  before(context);
  EXPECT_TRUE(context.seams.replaced().empty());
  train::Trainer trainer(diagnose::tiny_config(), diagnose::uniform_tokens(4000));
  std::vector<double> result;
  for (int i = 0; i < 8; ++i) {
    const train::StepResult step = trainer.step();
    result.push_back(step.loss);
    result.push_back(step.grad_norm);
  }
  return result;
}

TEST(Planting, LeavesNothingBehindBitwise) {
  const auto untouched = losses([](Context&) {});
  EXPECT_EQ(untouched, losses([](Context& context) {
              const Catalogue catalogue;
              for (const auto& entry : catalogue.entries()) entry.variant->plant(context);
            }));
}

TEST(Watching, ChangesNoBit) {
  const auto unwatched = losses([](Context&) {});
  std::unique_ptr<diagnose::Watch> watch;
  Context context;
  const ContextGuard guard(context);
  watch = std::make_unique<diagnose::Watch>(context, diagnose::WatchLevel::deep);
  train::Trainer trainer(diagnose::tiny_config(), diagnose::uniform_tokens(4000));
  std::vector<double> watched;
  for (int i = 0; i < 8; ++i) {
    const train::StepResult step = trainer.step();
    watched.push_back(step.loss);
    watched.push_back(step.grad_norm);
  }
  EXPECT_EQ(watched, unwatched);
}

// ---- what is shown
// -------------------------------------------------------------------------------

CaseResult example() {
  CaseResult result;
  result.id = "adamw.step-counter";
  result.variant = "bf16";
  result.title = "A step counter in bf16 stops at 256";
  result.seed = "004 3.1";
  result.domain = "optimizer";
  const auto run = [](double counted, double p) {
    RunRecord record;
    record.metrics.count("counted", counted);
    record.metrics.measure("p", p);
    return record;
  };
  result.healthy = run(1000, 0.000013);
  result.faulty = run(256, 0.204108);
  result.fixed = run(1000, 0.000013);
  result.faulty.detections.push_back(
      {"counter.advances", "adamw.step-counter", 0.98, 257, 0, "adamw", "evidence"});
  result.expected = {{"counted", 256, 0, ""}, {"p", 0.204108, 3e-5, "a reason"}};
  result.seconds = 0.3;
  return result;
}

TEST(Console, PrintsTheFiveLines) {
  EXPECT_EQ(case_text(example()),
            "adamw.step-counter:bf16   A step counter in bf16 stops at 256\n"
            "  healthy  1000 counted  p 0.000013  silent\n"
            "  faulty    256 counted  p 0.204108  counter.advances, step 257, op adamw\n"
            "  fixed    1000 counted  p 0.000013  silent, equal to healthy\n"
            "  verified 0.3 s   faultline explain adamw.step-counter\n");
}

TEST(Console, SaysWhyACaseFailed) {
  CaseResult result = example();
  result.why = "the reason";
  EXPECT_THAT(case_text(result), HasSubstr("FAILED   0.3 s   the reason"));
  EXPECT_THAT(summary_text({example(), result}, 1.5), HasSubstr("1 verified, 1 FAILED"));
  EXPECT_EQ(summary_text({example()}, 1.5), "1 case, all verified, 1.5 s\n");
}

TEST(CaseResult, HasTheShapeOfTheContractAndSurvivesJson) {
  CaseResult result = example();
  result.faulty.metrics.measure("x", NAN);
  result.claimed = result.healthy;
  result.outcome = Outcome::hides;
  const Json json = to_json(result);
  for (const char* key : {"id", "variant", "title", "seed", "domain", "healthy", "faulty", "fixed",
                          "claimed", "expected", "verdict", "why", "seconds"}) {
    EXPECT_NE(json.find(key), nullptr) << key;
  }
  EXPECT_EQ(json.at("verdict").text(), "verified");
  EXPECT_EQ(json.at("expected").at("p").real(), 0.204108);
  EXPECT_EQ(json.at("faulty").at("detections").items()[0].at("cause").text(), "adamw.step-counter");
  EXPECT_THAT(json.to_text(), HasSubstr("\"x\":\"nan\""));
  const Json parsed = Json::parse(json.to_text(), "test");
  EXPECT_EQ(to_json(result_from_json(parsed)).to_text(), json.to_text());
}

TEST(CaseResult, WithoutAClaimHasNullForIt) {
  EXPECT_TRUE(to_json(example()).at("claimed").is(Json::Kind::null));
}

TEST(Explain, WrapsToTheWidthOfTheTerminal) {
  const Catalogue catalogue;
  for (const Fault& fault : catalogue.faults()) {
    std::istringstream lines(explain_text(fault, 72));
    std::string line;
    std::getline(lines, line);  // id and title
    while (std::getline(lines, line)) {
      const bool one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;
      if (one_word || line.starts_with("    faultline")) continue;  // addresses, commands
      EXPECT_LE(line.size(), 72U) << line;
    }
  }
}

}  // namespace
}  // namespace faultline::lab
