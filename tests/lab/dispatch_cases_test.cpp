#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/planted.h"
#include "lab/run_case.h"
#include "tests/diagnose/watched.h"

// The cases of fused attention and of its dispatch: verified for any seed, named in training.
namespace faultline::lab {
namespace {

using testing::IsEmpty;
using testing::Not;

class DispatchCase : public testing::TestWithParam<const char*> {};

TEST_P(DispatchCase, IsVerifiedForAnySeed) {
  const Catalogue catalogue;
  const Catalogue::Entry entry{&catalogue.fault_of(GetParam()), &catalogue.find(GetParam())};
  for (const uint64_t seed : {1, 2, 17}) {
    const CaseResult result = run_case(entry, {.seed = seed});
    EXPECT_EQ(result.why, "") << seed;
    const Metrics& metrics = result.faulty.metrics;
    EXPECT_TRUE(!metrics.grids().empty() || !metrics.curves().empty()) << "a picture says more";
    if (result.claimed) {
      EXPECT_EQ(result.outcome, Outcome::fails);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ours, DispatchCase,
                         testing::Values("attn.scale-twice", "attn.gqa-order",
                                         "attn.window-off-by-one", "attn.nan-in-masked-v",
                                         "kernel.silent-fallback:unchecked-launch",
                                         "kernel.silent-fallback:dropped-feature",
                                         "kernel.silent-fallback:slow-path", "sdpa.fallback"));

// ---- in training --------------------------------------------------------------------------------

// What the detectors say of some steps of a model that has what the fault needs.
std::vector<diagnose::Detection> trained(const std::string& fault, bool planted) {
  return diagnose::watched([&](Context& context) {
    const Catalogue catalogue;
    const Variant& variant = catalogue.find(fault);
    train::ConfigBuilder builder = train::ConfigBuilder::preset("tiny");
    for (const auto& [key, value] : variant.training().needs) builder.set(key, value, "fault");
    builder.set("num_layers", "1", "test");
    std::shared_ptr<void> guard;
    if (planted) guard = variant.plant(context);
    train::Trainer trainer(builder.build(), diagnose::uniform_tokens(20000));
    for (int i = 0; i < 3; ++i) trainer.step();
    trainer.evaluate(2);
  });
}

TEST(DispatchCases, AreNamedInTrainingAndNobodyElseIs) {
  for (const char* fault :
       {"attn.scale-twice", "attn.gqa-order", "attn.window-off-by-one", "attn.nan-in-masked-v",
        "kernel.silent-fallback:unchecked-launch", "kernel.silent-fallback:dropped-feature",
        "kernel.silent-fallback:slow-path"}) {
    const std::vector<diagnose::Detection> found = trained(fault, true);
    ASSERT_THAT(found, Not(IsEmpty())) << fault;
    EXPECT_EQ(found[0].cause, std::string(fault).substr(0, std::string(fault).find(':')))
        << found[0].evidence;
    for (const diagnose::Detection& d : found) {
      EXPECT_TRUE(d.cause.empty() || d.cause == found[0].cause) << fault << ": " << d.cause;
    }
    EXPECT_THAT(trained(fault, false), IsEmpty()) << fault;
  }
}

}  // namespace
}  // namespace faultline::lab
