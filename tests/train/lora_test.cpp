#include "train/lora.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>

#include "io/checkpoint.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "nn/gpt2.h"
#include "tests/io/scratch_directory.h"
#include "tests/support/compare.h"
#include "tests/train/text.h"
#include "train/model_directory.h"
#include "train/run.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

ConfigBuilder builder(const std::string& lora) {
  ConfigBuilder config = ConfigBuilder::preset("tiny");
  for (const char* setting : {"hidden_size=16", "seq_len=16", "lr=1e-2", "warmup_steps=0"}) {
    config.assign(setting, "--set");
  }
  config.set("lora", lora, "--lora");
  return config;
}

constexpr const char* kLora = "r=2,alpha=4,dropout=0.1";

// A run that trained its model in `directory`, one checkpoint.
void make_base(const std::string& directory) {
  const ConfigBuilder config = builder("");
  Trainer trainer(config.build(), words());
  create_run(directory, make_record("tiny", config, {}), trainer, {});
  run(trainer, directory, {.steps = 5});
}

// A run over `base` that trains an adapter until `steps`, new or gone on with.
void tune(const std::string& base, const std::string& directory, int64_t steps) {
  const ConfigBuilder config = builder(kLora);
  Trainer trainer(config.build(), words());
  if (fs::exists(directory)) {
    load_latest(directory, trainer);
  } else {
    nn::load_base(trainer.model(), read_base(base));
    create_run(directory, make_record(base, config, {}), trainer, {});
  }
  run(trainer, directory, {.steps = steps});
}

State latest_state(const std::string& directory) {
  return load_checkpoint(*latest_checkpoint(directory)).state;
}

TEST(LoraText, IsReadWithPeftsDefaults) {
  const nn::LoraConfig config = lora_from_text("r=4,alpha=2.5,dropout=0.1,rslora=true");
  EXPECT_EQ(config.rank, 4);
  EXPECT_EQ(config.alpha, 2.5);
  EXPECT_EQ(config.dropout, 0.1);
  EXPECT_EQ(config.scaling, nn::LoraScaling::by_root_of_rank);
  EXPECT_EQ(config.targets.kind, nn::LoraTargets::Kind::all_linear);
  EXPECT_EQ(lora_from_text("r=8").alpha, 8);
  EXPECT_EQ(lora_from_text("r=8,targets=a+b.c").targets.texts,
            (std::vector<std::string>{"a", "b.c"}));
  EXPECT_EQ(lora_from_text("r=8,targets=all-linear").targets.kind,
            nn::LoraTargets::Kind::all_linear);
  EXPECT_EQ(lora_from_text("r=8,regex=h.{1,2}").targets.texts, std::vector<std::string>{"h.{1,2}"});
}

TEST(LoraText, IsRefusedByTheNameOfTheKey) {
  for (const auto& [text, part] :
       {std::pair("r=0", "rank"), std::pair("alpha=0", "alpha"), std::pair("rang=8", "rang"),
        std::pair("r=8,", "comma"), std::pair("r", "r=8"), std::pair("r=8x", "8x"),
        std::pair("rslora=1", "rslora"), std::pair("dropout=2", "dropout")}) {
    const auto error = error_of<InvalidArgument>([text = text] { lora_from_text(text); });
    EXPECT_NE(error.find(part), std::string::npos) << text << ": " << error;
  }
}

TEST(LoraRun, SavesTheBaseOnceAndTheAdapterAlone) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "tuned", 4);
  EXPECT_TRUE(fs::exists(scratch / "tuned/base.safetensors"));
  const State state = latest_state(scratch / "tuned");
  size_t model = 0;
  for (const auto& [name, tensor] : state.tensors) {
    if (!name.starts_with("model.")) continue;
    ++model;
    EXPECT_NE(name.find(".default.lora_"), std::string::npos) << name;
  }
  EXPECT_EQ(model, 16u);  // A and B of four layers in two blocks
  const Json ranks = Json::parse(content_of(scratch / "tuned/ranks.json"), "ranks.json");
  const auto bytes = [&](const char* key) { return ranks.items()[0].at(key).integer(); };
  EXPECT_EQ(bytes("gradient_bytes"), 4 * 2 * 2 * ((48 + 16) + 32 + (64 + 16) * 2));
  EXPECT_EQ(bytes("optimizer_bytes"), 2 * bytes("gradient_bytes") + 8);
  EXPECT_GT(bytes("parameter_bytes"), 5 * bytes("gradient_bytes"));
}

TEST(LoraRun, StoppedAndResumedHasTheBitsOfOneThatNeverStopped) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "straight", 8);
  tune(scratch / "base", scratch / "stopped", 3);
  tune(scratch / "base", scratch / "stopped", 8);
  const State expected = latest_state(scratch / "straight");
  const State found = latest_state(scratch / "stopped");
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(test::same_bits(found.tensor(name), tensor)) << name;
  }
}

TEST(LoraRun, IsLoadedAsItsAdapterOverItsBaseEitherWay) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "tuned", 4);
  const auto logits = [&](const std::string& run, const std::string& adapter) {
    const NoGrad off;
    const Config config = read_record(run).config.build();
    const auto model = nn::make_model(config.model(), 99);
    load_run(*model, config, run, adapter);
    model->set_training(false);
    return (*model)(tensor<int32_t>({1, 2, 3, 4, 5}, {1, 5}), nn::Mask{}).detach();
  };
  const Tensor own = logits(scratch / "tuned", "");
  EXPECT_TRUE(test::same_bits(logits(scratch / "base", scratch / "tuned/adapter"), own));
  EXPECT_TRUE(test::same_bits(logits(scratch / "tuned", scratch / "tuned/adapter"), own));
  EXPECT_FALSE(test::same_bits(logits(scratch / "base", ""), own));
}

std::string base_name(const std::string& tuned) {
  return read_peft_config(tuned + "/adapter").base.name;
}

TEST(LoraRun, AnAdapterNamesItsBaseAndIsRefusedOverAnother) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "tuned", 2);
  EXPECT_EQ(base_name(scratch / "tuned"), scratch / "base");
  const std::string adapter = scratch / "tuned/adapter";
  EXPECT_TRUE(open_model(scratch / "base", adapter).notes.empty());
  // Longer training of the same shapes.
  ConfigBuilder config = builder("");
  Trainer trainer(config.build(), words());
  create_run(scratch / "other", make_record("tiny", config, {}), trainer, {});
  const auto error = error_of<InvalidArgument>([&] { open_model(scratch / "other", adapter); });
  EXPECT_NE(error.find("other weights ('" + scratch / "base" + "')"), std::string::npos) << error;
  EXPECT_NE(error.find(adapter + "/adapter_model.safetensors"), std::string::npos) << error;
}

// As PEFT writes adapters: with the name of a base and without a checksum.
TEST(LoraRun, ANameOfAnotherBaseIsToldWhereNoChecksumDecides) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "tuned", 1);
  const std::string adapter = scratch / "tuned/adapter";
  write_safetensors(adapter + "/adapter_model.safetensors",
                    read_safetensors(adapter + "/adapter_model.safetensors").tensors);
  const auto notes = [&](const Json& name) {
    Json config = Json::parse(content_of(adapter + "/adapter_config.json"), "json");
    config.set("base_model_name_or_path", name);
    scratch.write("tuned/adapter/adapter_config.json", config.to_text());
    return open_model(scratch / "base", adapter).notes;
  };
  for (const Json& name : {Json(), Json(scratch / "base"), Json("somebody/base"), Json("tiny")}) {
    EXPECT_TRUE(notes(name).empty()) << name.to_text();
  }
  const std::vector<std::string> told = notes("somebody/else");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("base_model_name_or_path is 'somebody/else'"), std::string::npos);
}

TEST(LoraRun, WeightsThatAreNotFiniteAreRefusedByFileAndTensor) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  ModelDirectory base = open_model(scratch / "base");
  State state = base.model->state();
  state.tensors["ln_f.bias"] =
      tensor(std::vector<float>(16, std::numeric_limits<float>::quiet_NaN()), {16});
  base.model->load(state);
  write_run(scratch / "broken", base, *base.record);
  for (const auto& use : {std::function<void()>([&] { open_model(scratch / "broken"); }),
                          std::function<void()>([&] { read_base(scratch / "broken"); })}) {
    const auto error = error_of<InvalidArgument>(use);
    EXPECT_NE(error.find("state.safetensors: tensor \"model.ln_f.bias\" holds NaN"),
              std::string::npos)
        << error;
  }
}

TEST(LoraRun, RefusesARunThatTrainsAnAdapterAsABase) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  tune(scratch / "base", scratch / "tuned", 1);
  const auto error = error_of<InvalidArgument>([&] { read_base(scratch / "tuned"); });
  EXPECT_NE(error.find("faultline merge"), std::string::npos) << error;
}

TEST(LoraRun, RefusesToResumeAModelWithoutAnOptimizer) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  const ModelDirectory base = open_model(scratch / "base");
  write_run(scratch / "merged", base, *base.record);
  Trainer trainer(base.record->config.build(), words());
  const auto error = error_of<InvalidArgument>([&] { load_latest(scratch / "merged", trainer); });
  EXPECT_NE(error.find("optimizer"), std::string::npos) << error;
  EXPECT_NO_THROW(read_base(scratch / "merged"));
}

}  // namespace
}  // namespace faultline::train
