#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/functional.h"
#include "core/float16.h"
#include "lab/planted.h"
#include "lab/run_case.h"
#include "nn/rope.h"
#include "tests/diagnose/watched.h"

// The cases of rotary positions, of a cache in training and of variable lengths: verified for any
// seed, named in training by those who should, silent where their remedies are trained, and what
// their texts claim beside their figures is so.
namespace faultline::lab {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LlamaCase : public testing::TestWithParam<const char*> {};

TEST_P(LlamaCase, IsVerifiedForAnySeed) {
  const Catalogue catalogue;
  const Catalogue::Entry entry{&catalogue.fault_of(GetParam()), &catalogue.find(GetParam())};
  for (const uint64_t seed : {1, 2, 17}) {
    const CaseResult result = run_case(entry, {.seed = seed});
    EXPECT_EQ(result.why, "") << seed;
    EXPECT_FALSE(result.faulty.metrics.curves().empty()) << "a picture says more";
    if (result.claimed) {
      EXPECT_EQ(result.outcome, Outcome::fails);
    }
  }
}

// ---- in training --------------------------------------------------------------------------------

train::Config config_for(const Variant& variant) {
  train::ConfigBuilder builder = train::ConfigBuilder::defaults();
  for (const auto& [key, value] : variant.training().needs) builder.set(key, value, "test");
  const train::Config needed = builder.build();
  train::Config config = diagnose::tiny_config();
  config.family = needed.family;
  config.micro_batch_size = needed.micro_batch_size;
  if (needed.seq_len % 2 == 1) config.seq_len = 15;
  return config;
}

struct Trained {
  std::vector<std::string> names;
  double loss = 0;
};

Trained train_with(const train::Config& config, const Plant& plant, const Plant& remedy = {}) {
  Trained trained;
  trained.names = diagnose::names_of(diagnose::watched([&](Context& context) {
    const auto planted = plant ? plant(context) : nullptr;
    const auto mended = remedy ? remedy(context) : nullptr;
    train::Trainer trainer(config, diagnose::uniform_tokens(20000));
    for (int i = 0; i < 5; ++i) trained.loss = trainer.step().loss;
    trainer.evaluate(2);
    trainer.probe_floor(16);
  }));
  return trained;
}

// Documents of random length are packed, so that texts end anywhere in a row.
TEST_P(LlamaCase, IsNamedInTrainingAndMendedByItsRemedy) {
  const Catalogue catalogue;
  const Variant& variant = catalogue.find(GetParam());
  const train::Config config = config_for(variant);
  const Plant wrong = [&](Context& context) { return variant.plant(context); };

  const Trained healthy = train_with(config, {});
  EXPECT_THAT(healthy.names, IsEmpty());
  const Trained faulty = train_with(config, wrong);
  ASSERT_FALSE(faulty.names.empty());
  EXPECT_EQ(faulty.names.front(), variant.detector() + " -> " + variant.fault_id());
  for (size_t i = 1; i < faulty.names.size(); ++i) {
    EXPECT_TRUE(faulty.names[i].ends_with("-> ")) << "a wrong cause: " << faulty.names[i];
  }
  EXPECT_NE(faulty.loss, healthy.loss);
}

INSTANTIATE_TEST_SUITE_P(Ours, LlamaCase,
                         testing::Values("rope.bf16", "rope.layout", "kv.micro-batch",
                                         "varlen.overrun:cu-seqlens", "varlen.overrun:past-end",
                                         "varlen.overrun:paged", "varlen.overrun:clamp"));

// A remedy trains as the framework does: other sums, and 5 steps of a learning rate of 0.01 over
// them, so that the losses of about 2.8 agree to some 1e-5.
TEST(LlamaCases, TheirRemediesTrainAsTheFrameworkDoes) {
  const Catalogue catalogue;
  for (const char* name :
       {"rope.bf16", "rope.layout", "kv.micro-batch", "varlen.overrun:cu-seqlens"}) {
    const Variant& variant = catalogue.find(name);
    const train::Config config = config_for(variant);
    const Trained healthy = train_with(config, {});
    const Trained mended = train_with(
        config, [&](Context& context) { return variant.plant(context); }, variant.remedy_plant());
    EXPECT_THAT(mended.names, IsEmpty()) << name;
    EXPECT_NEAR(mended.loss, healthy.loss, 1e-4) << name;
  }
}

// ---- what the texts claim -----------------------------------------------------------------------

template <class T>
size_t distinct_positions() {
  std::set<float> distinct;
  for (int p = 0; p < 4096; ++p) distinct.insert(static_cast<float>(T(static_cast<float>(p))));
  return distinct.size();
}

TEST(RopeBf16, LeavesFewerPositionsTheFewerBitsThereAre) {
  EXPECT_EQ(distinct_positions<bfloat16>(), 769);
  EXPECT_EQ(distinct_positions<float16>(), 3073);
}

// The scores of (1, 2, 3, 4) with itself are 30 at distance 0 in either layout.
TEST(RopeLayout, IsRightAtDistanceZero) {
  const nn::RopeTables tables = nn::rope_tables({}, 4, tensor<int32_t>({7}), 8);
  const Tensor x = tensor<float>({1, 2, 3, 4}, {1, 1, 1, 4});
  for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
    const Tensor y = nn::rotary(x, tables, layout);
    EXPECT_NEAR(sum(y * y).item<double>(), 30, 30 * 0x1p-21);
  }
}

}  // namespace
}  // namespace faultline::lab
