#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "lab/run_case.h"
#include "nn/gpt2.h"
#include "tests/diagnose/watched.h"
#include "train/generation.h"
#include "train/prompt_loss.h"

// The cases of cached generation and its input: verified for any seed, and each has a form that
// `faultline generate` can plant.
namespace faultline::lab {
namespace {

class GenerationCase : public testing::TestWithParam<const char*> {};

TEST_P(GenerationCase, IsVerifiedForAnySeed) {
  const Catalogue catalogue;
  const Catalogue::Entry entry{&catalogue.fault_of(GetParam()), &catalogue.find(GetParam())};
  for (const uint64_t seed : {1, 2, 17}) {
    const CaseResult result = run_case(entry, {.seed = seed});
    EXPECT_EQ(result.why, "") << seed;
    if (result.claimed) {
      EXPECT_EQ(result.outcome, Outcome::fails);
    }
  }
}

TEST_P(GenerationCase, HasAGenerationFormAndNoTrainingForm) {
  const Catalogue catalogue;
  const Variant& variant = catalogue.find(GetParam());
  EXPECT_TRUE(variant.has_generation_form());
  EXPECT_THROW(variant.training(), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Ours, GenerationCase,
    testing::Values("attn.past-ignored:local-causal", "attn.past-ignored:zero-slots",
                    "attn.past-ignored:write-index", "attn.past-ignored:left-pad",
                    "attn.causal-align", "kv.dtype-reinterpret:reinterpret",
                    "kv.dtype-reinterpret:checkpoint-append", "kv.prefix-collision",
                    "input.context-overflow", "input.bad-utf8:invalid",
                    "input.bad-utf8:split-stream", "input.bad-utf8:mojibake"));

TEST(GenerationForm, IsRefusedByNameWhereThereIsNone) {
  const Catalogue catalogue;
  const Variant& variant = catalogue.find("wd.on-norm");
  EXPECT_FALSE(variant.has_generation_form());
  try {
    variant.generation();
    FAIL() << "wd.on-norm has no generation form";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("wd.on-norm"));
  }
}

}  // namespace
}  // namespace faultline::lab
