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
  const nn::LoraConfig patterns =
      lora_from_text("r=8,rank_pattern=h.0.attn.c_attn:4+c_(attn|fc):2,alpha_pattern=c_fc:0.5");
  using Ranks = std::vector<std::pair<std::string, int64_t>>;
  using Alphas = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(patterns.rank_pattern, (Ranks{{"h.0.attn.c_attn", 4}, {"c_(attn|fc)", 2}}));
  EXPECT_EQ(patterns.alpha_pattern, (Alphas{{"c_fc", 0.5}}));
  EXPECT_EQ(lora_from_text("r=8,regex=h.{1,2}").targets.texts, std::vector<std::string>{"h.{1,2}"});
}

TEST(LoraText, IsRefusedByTheNameOfTheKey) {
  for (const auto& [text, part] :
       {std::pair("r=0", "rank"), std::pair("alpha=0", "alpha"), std::pair("rang=8", "rang"),
        std::pair("r=8,", "comma"), std::pair("r", "r=8"), std::pair("r=8x", "8x"),
        std::pair("rslora=1", "rslora"), std::pair("dropout=2", "dropout"),
        std::pair("r=4,r=8", "twice"), std::pair("r=4,targets=a,regex=b", "targets and regex"),
        std::pair("rank_pattern=c_fc", "PATTERN:NUMBER"), std::pair("rank_pattern=:4", "PATTERN"),
        std::pair("rank_pattern=c_fc:0", "rank_pattern"), std::pair("alpha_pattern=a:x", "'x'"),
        std::pair("alpha_pattern=a:1+a:2", "twice"), std::pair("rank_pattern=(:2", "'('"),
        std::pair("rank_pattern=a:4,rank_pattern=b:4", "twice")}) {
    const auto error = error_of<InvalidArgument>([text = text] { lora_from_text(text); });
    EXPECT_NE(error.find(part), std::string::npos) << text << ": " << error;
  }
}

std::string refusal(const std::string& lora) {
  return error_of<InvalidArgument>([&] {
    const Config config = builder(lora).build();
    const auto model = nn::make_model(config.model(), 1);
    add_run_adapter(*model, config);
  });
}

TEST(LoraRun, RefusesARankThatNoLayerCanUseAndAPatternOfNoLayer) {
  // The smaller side of every layer is hidden_size 16.
  for (const char* lora : {"r=17", "r=1000000000000", "r=4,rank_pattern=mlp.c_fc:17"}) {
    const std::string text = refusal(lora);
    EXPECT_NE(text.find("above 16, the smaller side"), std::string::npos) << lora << ": " << text;
  }
  EXPECT_NE(refusal("r=4,rank_pattern=c_ffc:2").find("'c_ffc'"), std::string::npos);
  EXPECT_NE(refusal("r=4,targets=c_fc,alpha_pattern=c_attn:2").find("'c_attn'"), std::string::npos);
  const Config most = builder("r=16").build();
  EXPECT_NO_THROW(add_run_adapter(*nn::make_model(most.model(), 1), most));
}

TEST(LoraRun, HasTheRanksAndAlphasOfItsPatternsAndSavesThemAsPeftDoes) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  const ConfigBuilder config =
      builder("r=4,alpha=8,rank_pattern=attn.c_attn:2,alpha_pattern=h.1.mlp.c_fc:6");
  Trainer trainer(config.build(), words());
  nn::load_base(trainer.model(), read_base(scratch / "base"));
  create_run(scratch / "tuned", make_record("base", config, {}), trainer, {});
  run(trainer, scratch / "tuned", {.steps = 1});
  const Json saved =
      Json::parse(content_of(scratch / "tuned/adapter/adapter_config.json"), "adapter_config.json");
  EXPECT_EQ(saved.at("rank_pattern").to_text(), R"({"attn.c_attn":2})");
  EXPECT_EQ(saved.at("alpha_pattern").to_text(), R"({"h.1.mlp.c_fc":6})");
  const auto model = nn::make_model(config.build().model(), 1);
  load_run(*model, builder("").build(), scratch / "base", {scratch / "tuned/adapter"});
  int64_t seen = 0;
  for (const auto& [layer, adapter] : nn::adapters_of(*model, kRunAdapter)) {
    const std::string name = peft_layer_name(layer->path());
    const int64_t rank = name.ends_with("attn.c_attn") ? 2 : 4;
    const double alpha = name.ends_with("h.1.mlp.c_fc") ? 6 : 8;
    EXPECT_EQ(adapter->shape().rank, rank) << name;
    EXPECT_EQ(adapter->scale(), alpha / static_cast<double>(rank)) << name;
    ++seen;
  }
  EXPECT_EQ(seen, 8);
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
    load_run(*model, config, run,
             adapter.empty() ? std::vector<std::string>{} : std::vector{adapter});
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
  EXPECT_TRUE(open_model(scratch / "base", {adapter}).notes.empty());
  // Longer training of the same shapes.
  ConfigBuilder config = builder("");
  Trainer trainer(config.build(), words());
  create_run(scratch / "other", make_record("tiny", config, {}), trainer, {});
  const auto error = error_of<InvalidArgument>([&] { open_model(scratch / "other", {adapter}); });
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
    return open_model(scratch / "base", {adapter}).notes;
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

// Adapters over one base are what merging one after the other gives.
TEST(LoraRun, SeveralAdaptersAddUp) {
  const ScratchDirectory scratch;
  make_base(scratch / "base");
  for (const char* name : {"first", "second"}) {
    const ConfigBuilder config =
        builder(std::string(name) == "first" ? kLora : "r=3,alpha=5,targets=c_attn");
    Trainer trainer(config.build(), words());
    nn::load_base(trainer.model(), read_base(scratch / "base"));
    create_run(scratch / name, make_record("base", config, {}), trainer, {});
    run(trainer, scratch / name, {.steps = 20});
  }
  const std::string first = scratch / "first/adapter";
  const std::string second = scratch / "second/adapter";
  const Config config = read_record(scratch / "base").config.build();
  const auto with = [&](const std::vector<std::string>& adapters) {
    auto model = nn::make_model(config.model(), 99);
    load_run(*model, config, scratch / "base", adapters);
    model->set_training(false);
    return model;
  };
  const auto logits = [](nn::LanguageModel& model) {
    const NoGrad off;
    return model(tensor<int32_t>({1, 2, 3, 4, 5}, {1, 5}), nn::Mask{}).to_vector<double>();
  };
  // The merged model is another base than the second adapter's, which its checksum would tell.
  const std::string file = second + "/adapter_model.safetensors";
  write_safetensors(file, read_safetensors(file).tensors);
  const auto merged = with({first});
  nn::merge_adapters(*merged, nn::Originals::drop);
  const auto twice = nn::make_model(config.model(), 1);
  nn::load_base(*twice, nn::base_state(*merged));
  load_peft(*twice, kRunAdapter, second, twice->dropout_key());
  nn::merge_adapters(*twice, nn::Originals::drop);
  twice->set_training(false);

  const std::vector<double> expected = logits(*twice);
  const std::vector<double> found = logits(*with({first, second}));
  // Two adapters move an f32 logit of about 5 by far more than rounding in some dozen products of
  // 16 to 64 terms does: 64 * 12 * 2^-24 * 5 is 2e-4.
  double apart = 0;
  double moved = 0;
  const std::vector<double> alone = logits(*with({first}));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 2e-4) << i;
    apart = std::max(apart, std::abs(found[i] - expected[i]));
    moved = std::max(moved, std::abs(alone[i] - expected[i]));
  }
  EXPECT_GT(moved, 100 * apart);
  EXPECT_GT(moved, 2e-3);
  EXPECT_NE(error_of<InvalidArgument>([&] {
              with({first, scratch / "first/../first/adapter"});
            }).find("twice"),
            std::string::npos);
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
