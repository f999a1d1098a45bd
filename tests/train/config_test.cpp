#include "train/config.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/io/scratch_directory.h"

namespace faultline::train {
namespace {

std::string refusal(const std::vector<std::string>& settings) {
  return error_of<InvalidArgument>([&] {
    ConfigBuilder config = ConfigBuilder::preset("tiny");
    for (const std::string& setting : settings) config.assign(setting, "--set");
    config.build();
  });
}

TEST(Config, PresetsHaveTheShapesOfTheContract) {
  EXPECT_EQ(ConfigBuilder::presets(),
            (std::vector<std::string>{"tiny", "char", "gpt2", "llama-tiny"}));
  const Config tiny = ConfigBuilder::preset("tiny").build();
  EXPECT_EQ(tiny.num_layers, 2);
  EXPECT_EQ(tiny.hidden_size, 32);
  EXPECT_EQ(tiny.vocab_size, 256);
  EXPECT_EQ(tiny.seq_len, 32);
  EXPECT_EQ(tiny.batch_size, 4);
  EXPECT_EQ(tiny.schedule_steps, 300);
  const Config character = ConfigBuilder::preset("char").build();
  EXPECT_EQ(character.num_layers, 4);
  EXPECT_EQ(character.hidden_size, 128);
  EXPECT_EQ(character.seq_len, 128);
  EXPECT_EQ(character.batch_size, 16);
  EXPECT_EQ(character.schedule_steps, 1500);
  const Config gpt2 = ConfigBuilder::preset("gpt2").build();
  EXPECT_EQ(gpt2.num_layers, 12);
  EXPECT_EQ(gpt2.hidden_size, 768);
  EXPECT_EQ(gpt2.vocab_size, 50304);
  EXPECT_EQ(gpt2.seq_len, 1024);
  const Config llama = ConfigBuilder::preset("llama-tiny").build();
  const auto model = std::get<nn::LlamaConfig>(llama.model());
  EXPECT_EQ(model.num_heads, 4);
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_EQ(model.head(), 8);
  EXPECT_EQ(model.intermediate_size, 96);
}

TEST(Config, OfLlamaHasUsualSizesWhereNoneAreSet) {
  ConfigBuilder config = ConfigBuilder::preset("tiny");
  config.set("family", "llama", "--set");
  config.set("rope_theta", "500000", "--set");
  const auto model = std::get<nn::LlamaConfig>(config.build().model());
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_EQ(model.intermediate_size, 96);  // 85.3 rounded up
  EXPECT_EQ(model.rope.theta, 500000);
}

TEST(Config, RefusesAnImpossibleLlamaNamingTheKey) {
  const std::pair<const char*, std::vector<std::string>> impossible[] = {
      {"num_key_value_heads", {"num_key_value_heads=3"}},
      {"num_heads", {"num_heads=5", "num_key_value_heads=5"}},
      {"hidden_size / num_heads", {"num_heads=32", "num_key_value_heads=32"}},  // heads of 1
      {"head_size", {"head_size=7"}},
      {"intermediate_size", {"intermediate_size=-1"}},
      {"theta", {"rope_theta=0"}},
      {"family", {"family=mamba"}},
      {"num_key_value_heads", {"family=gpt2"}},
  };
  for (const auto& [key, settings] : impossible) {
    const std::string text = error_of<InvalidArgument>([&settings = settings] {
      ConfigBuilder config = ConfigBuilder::preset("llama-tiny");
      for (const std::string& setting : settings) config.assign(setting, "--set");
      config.build();
    });
    EXPECT_NE(text.find(key), std::string::npos) << settings[0] << ": " << text;
  }
}

constexpr const char* kLlama3 =
    R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
    R"("original_max_position_embeddings":16})";

TEST(Config, OfLlamaTakesRopeScalingAsHuggingFaceWritesIt) {
  ConfigBuilder config = ConfigBuilder::preset("llama-tiny");
  EXPECT_EQ(config.value("rope_scaling"), "");
  EXPECT_TRUE(config.to_json().at("rope_scaling").is(Json::Kind::null));
  config.assign(std::string("rope_scaling=") + kLlama3, "--set");
  config.assign("rope_theta=500000", "--set");
  const nn::RopeConfig rope = std::get<nn::LlamaConfig>(config.build().model()).rope;
  EXPECT_EQ(rope.scaling, nn::RopeScaling::llama3);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.original_positions, 16);
  EXPECT_EQ(rope.theta, 500000);
  EXPECT_TRUE(config.to_json().at("rope_scaling").is(Json::Kind::object));
  const ConfigBuilder again =
      ConfigBuilder::recorded(Json::parse(config.to_json().to_text(), "values"), config.sources());
  EXPECT_EQ(again.value("rope_scaling"), config.value("rope_scaling"));

  ConfigBuilder dynamic = ConfigBuilder::preset("llama-tiny");
  dynamic.set_json("rope_scaling", Json::object().set("rope_type", "dynamic").set("factor", 2),
                   "file");
  // Its scaling begins at max_position_embeddings, which is seq_len here.
  EXPECT_EQ(std::get<nn::LlamaConfig>(dynamic.build().model()).rope.original_positions, 32);
  dynamic.set_json("rope_scaling", Json(), "file");
  EXPECT_EQ(std::get<nn::LlamaConfig>(dynamic.build().model()).rope.scaling, nn::RopeScaling::none);
}

TEST(Config, RefusesARopeScalingNamingWhatIsWrongWithIt) {
  const std::pair<const char*, const char*> impossible[] = {
      {"8", "takes a JSON object"},
      {"{\"factor\":", "rope_scaling"},
      {R"({"rope_type":"stretched","factor":2})", "rope_type"},
      {R"({"rope_type":"linear"})", "factor"},
      {R"({"rope_type":"linear","factor":0.5})", "factor"},
      {R"({"rope_type":"linear","factor":2,"speed":3})", "speed"},
      {R"({"rope_type":"linear","factor":2,"rope_theta":500})", "a key of its own"},
      {R"({"rope_type":"dynamic","factor":2,"original_max_position_embeddings":16})", "32"},
  };
  for (const auto& [value, said] : impossible) {
    const std::string text = error_of<InvalidArgument>([value = value] {
      ConfigBuilder config = ConfigBuilder::preset("llama-tiny");
      config.assign(std::string("rope_scaling=") + value, "--set");
      config.build();
    });
    EXPECT_NE(text.find("rope_scaling"), std::string::npos) << value << ": " << text;
    EXPECT_NE(text.find(said), std::string::npos) << value << ": " << text;
  }
  EXPECT_NE(refusal({std::string("rope_scaling=") + kLlama3}).find("GPT-2 has none"),
            std::string::npos);
}

TEST(Config, RefusesEachImpossibleValueNamingItsKey) {
  const std::pair<const char*, const char*> impossible[] = {{"num_layers", "0"},
                                                            {"num_heads", "5"},
                                                            {"num_heads", "-1"},
                                                            {"hidden_size", "0"},
                                                            {"vocab_size", "0"},
                                                            {"seq_len", "0"},
                                                            {"batch_size", "0"},
                                                            {"micro_batch_size", "5"},
                                                            {"micro_batch_size", "-1"},
                                                            {"lr", "nan"},
                                                            {"lr", "inf"},
                                                            {"lr", "-1"},
                                                            {"min_lr", "1"},
                                                            {"warmup_steps", "-1"},
                                                            {"warmup_steps", "301"},
                                                            {"schedule_steps", "0"},
                                                            {"schedule", "stairs"},
                                                            {"weight_decay", "-1"},
                                                            {"beta1", "1"},
                                                            {"beta2", "nan"},
                                                            {"eps", "-1"},
                                                            {"clip_norm", "nan"},
                                                            {"dropout", "1"},
                                                            {"init_std", "0"},
                                                            {"attention", "fast"},
                                                            {"eval_every", "-1"},
                                                            {"documents", "page"},
                                                            {"num_key_value_heads", "1"},
                                                            {"head_size", "8"},
                                                            {"intermediate_size", "64"},
                                                            {"rope_theta", "500"}};
  for (const auto& [key, value] : impossible) {
    const std::string text = refusal({std::string(key) + "=" + value});
    EXPECT_NE(text.find(key), std::string::npos) << key << "=" << value << ": " << text;
  }
}

TEST(Config, RefusesWhatIsNotOfAKeysType) {
  for (const char* setting :
       {"num_layers=two", "num_layers=2.5", "num_layers=", "lr=fast", "seed=-1", "pack=maybe",
        "lr=1e-3x", "batch_size=99999999999999999999"}) {
    const std::string text = refusal({setting});
    EXPECT_NE(text.find("takes"), std::string::npos) << text;
  }
  EXPECT_NE(refusal({"lr"}).find("key=value"), std::string::npos);
  EXPECT_NE(refusal({"=1"}).find("key=value"), std::string::npos);
}

TEST(Config, SuggestsTheNearestName) {
  // Ten edits from "learning_rat" to the nearest key, which is no help: what shows the keys is.
  EXPECT_NE(refusal({"learning_rat=1"}).find("--print-config"), std::string::npos);
  EXPECT_EQ(suggestion("zzz", {"one", "two"}, "see there"), "expected one of: one, two");
  EXPECT_NE(refusal({"num_head=1"}).find("did you mean 'num_heads'?"), std::string::npos);
  EXPECT_NE(error_of<InvalidArgument>([] { ConfigBuilder::preset("tyni"); }).find("'tiny'"),
            std::string::npos);
  EXPECT_EQ(nearest("attn.mask", {"loss.log-zero", "attn.mask-broadcast"}), "attn.mask-broadcast");
}

TEST(Config, KeepsWhereEachValueCameFrom) {
  ConfigBuilder config = ConfigBuilder::preset("tiny");
  config.set("lr", "0.5", "--lr");
  config.set("dropout", "0.1", "fault");
  EXPECT_EQ(config.user_value("lr"), "0.5");
  EXPECT_FALSE(config.user_value("dropout").has_value());
  EXPECT_FALSE(config.user_value("hidden_size").has_value());
  EXPECT_EQ(config.sources().at("hidden_size").text(), "preset tiny");
  EXPECT_EQ(config.sources().at("beta1").text(), "default");
  EXPECT_EQ(config.entries().size(), config_keys().size());
}

TEST(Config, SurvivesItsFileBitForBit) {
  ConfigBuilder config = ConfigBuilder::preset("char");
  config.set("lr", "0.1000000000000000055511151231257827", "--lr");
  config.set("seed", "18446744073709551615", "--seed");
  const ConfigBuilder again =
      ConfigBuilder::recorded(Json::parse(config.to_json().to_text(), "values"),
                              Json::parse(config.sources().to_text(), "sources"));
  ASSERT_EQ(again.entries().size(), config.entries().size());
  for (size_t i = 0; i < config.entries().size(); ++i) {
    EXPECT_EQ(again.entries()[i].value, config.entries()[i].value) << config.entries()[i].key;
    EXPECT_EQ(again.entries()[i].source, config.entries()[i].source);
  }
  EXPECT_EQ(again.build().seed, UINT64_MAX);
  EXPECT_EQ(again.build().lr, 0.1);
}

TEST(Config, ReadsAFileOfKeysAndRefusesABadOneNamingThePlace) {
  const ScratchDirectory scratch;
  const auto read = [&](const char* text) {
    return ConfigBuilder::file(scratch.write("config.json", text)).build();
  };
  const Config config = read(R"({"num_layers": 3, "lr": 1, "documents": "verse", "pack": false})");
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.lr, 1);
  EXPECT_EQ(config.documents, "verse");
  EXPECT_FALSE(config.pack);
  const auto refused = [&](const char* text) {
    return error_of<InvalidArgument>([&] { read(text); });
  };
  EXPECT_NE(refused(R"({"num_layers": 2, "num_head": 3})").find("num_heads"), std::string::npos);
  EXPECT_NE(refused(R"({"num_layers": )").find("config.json"), std::string::npos);
  EXPECT_NE(refused(R"([1])").find("object"), std::string::npos);
  EXPECT_NE(refused(R"({"num_layers": true})").find("num_layers"), std::string::npos);
  EXPECT_NE(refused(R"({"num_layers": 2.0})").find("num_layers"), std::string::npos);
  EXPECT_THROW(ConfigBuilder::file(scratch / "nothing.json"), IoError);
}

}  // namespace
}  // namespace faultline::train
