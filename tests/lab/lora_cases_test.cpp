#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/case.h"
#include "tests/diagnose/watched.h"

// What the cases about adapters promise beyond their own figures: that the fault is found in a run
// of the trainer that trains an adapter, by name, and by nobody under another name.
namespace faultline::lab {
namespace {

using diagnose::Detection;
using diagnose::tiny_config;
using diagnose::watched;
using testing::IsEmpty;

// Documents of nine symbols below 16.
TokenStore short_documents() {
  const RandomSequence random(1, stream_of("short documents"));
  TokenStoreBuilder builder(16, 0);
  uint64_t drawn = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<int32_t> ids(9);
    for (int32_t& id : ids) id = 1 + static_cast<int32_t>(random.below(15, drawn++));
    builder.add_document(ids);
  }
  return builder.finish();
}

train::Config adapted(const std::string& lora, int64_t hidden_size = 16) {
  train::Config config = tiny_config();
  config.lora = lora;
  config.hidden_size = hidden_size;
  return config;
}

// What all detectors say of a run in which the fault is planted ("" for none).
std::vector<Detection> trained_with(const std::string& fault, const train::Config& config) {
  return watched([&](Context& context) {
    const Catalogue catalogue;
    std::shared_ptr<void> planted;
    if (!fault.empty()) planted = catalogue.find(fault).plant(context);
    train::Trainer trainer(config, short_documents());
    for (int i = 0; i < 12; ++i) trainer.step();
    trainer.evaluate(2);
    trainer.probe_floor(16);
    trainer.probe_merge(1);
  });
}

struct Planted {
  const char* fault;
  const char* lora;
  int64_t hidden_size = 16;
};

class LoraCases : public testing::TestWithParam<Planted> {};

// The fault is named first and nothing else is; the same settings without it alarm nobody.
TEST_P(LoraCases, IsNamedInARunOfTheTrainer) {
  const Planted& planted = GetParam();
  const train::Config config = adapted(planted.lora, planted.hidden_size);
  const std::vector<Detection> found = trained_with(planted.fault, config);
  ASSERT_FALSE(found.empty());
  for (const Detection& detection : found) EXPECT_EQ(detection.cause, planted.fault);
  EXPECT_THAT(names_of(trained_with("", config)), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Faults, LoraCases,
                         testing::Values(Planted{"lora.misaligned", "r=3,alpha=6", 18},
                                         Planted{"lora.repetition", "r=4,alpha=8"},
                                         Planted{"lora.scale", "r=4,alpha=8,rslora=true"},
                                         Planted{"lora.both-zero", "r=4,alpha=8"},
                                         Planted{"lora.merge-bf16", "r=4,alpha=8"},
                                         Planted{"lora.merge-twice", "r=4,alpha=8"},
                                         Planted{"lora.fan-in-out",
                                                 "r=4,alpha=8,regex=.*attn\\.c_proj"}),
                         [](const auto& instance) {
                           std::string name = instance.param.fault;
                           for (char& c : name) c = c == '.' || c == '-' ? '_' : c;
                           return name;
                         });

TEST(LoraCases, AHealthyLlamaWithAnAdapterAlarmsNobody) {
  train::Config config = adapted("r=2,alpha=4,dropout=0.1");
  config.family = "llama";
  EXPECT_THAT(names_of(trained_with("", config)), IsEmpty());
}

// The floor of a probe that merges: the run goes on as if it had not been there.
TEST(LoraCases, AProbeOfAMergeChangesNothing) {
  const auto losses = [](bool probed) {
    Context context(ContextOptions{.threads = 1});
    const ContextGuard guard(context);
    train::Trainer trainer(adapted("r=4,alpha=8"), short_documents());
    std::vector<double> result;
    for (int i = 0; i < 4; ++i) {
      result.push_back(trainer.step().loss);
      if (probed) trainer.probe_merge(1);
    }
    return result;
  };
  EXPECT_EQ(losses(true), losses(false));
}

}  // namespace
}  // namespace faultline::lab
