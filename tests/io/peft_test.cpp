#include "io/peft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "autograd/functional.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "nn/gpt2.h"
#include "nn/llama.h"
#include "tests/io/scratch_directory.h"
#include "tests/support/compare.h"

namespace faultline {
namespace {

std::string golden(const std::string& name) {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/tests/golden/" + name;
}

constexpr nn::Gpt2Config kGolden{
    .vocab_size = 64, .seq_len = 16, .num_layers = 2, .num_heads = 2, .hidden_size = 32};

// The model over which tests/golden/make_lora_golden.py ran PEFT.
struct Base {
  Safetensors file = read_safetensors(golden("gpt2_golden.safetensors"));
  nn::Gpt2 model{kGolden, 1};

  Base() {
    State state;
    for (const auto& [name, tensor] : file.tensors) {
      if (name.starts_with("init.")) state.tensors[name.substr(5)] = tensor;
    }
    model.load(state);
  }
  PeftConfig load(const std::string& directory) {
    return load_peft(model, "own", directory, model.dropout_key());
  }
  std::vector<double> logits() {
    const NoGrad off;
    const Tensor tokens = contiguous(slice(file.tensors.at("tokens"), 0, 0, 1));
    return model(tokens, nn::Mask{}).to_vector<double>();
  }
};

double largest(const std::vector<double>& values) {
  double found = 0;
  for (const double value : values) found = std::max(found, std::abs(value));
  return found;
}

// Two layers with adapters are about two dozen products in a row, each over up to 128 terms whose
// rounding grows like the root of their number (11); errors are relative to the largest element.
constexpr double kForward = 24 * 11 * 0x1p-23;

constexpr const char* kKinds[] = {"list", "regex", "all_linear", "patterns", "rslora"};

TEST(PeftGolden, LogitsAreThoseOfPeftInF64) {
  const Safetensors expected = read_safetensors(golden("lora_golden.safetensors"));
  for (const std::string kind : kKinds) {
    Base base;
    const std::vector<double> plain = base.logits();
    base.load(golden("peft/" + kind));
    const auto logits = expected.tensors.at("logits." + kind).to_vector<double>();
    EXPECT_TRUE(test::close(base.logits(), logits, {.absolute = kForward * largest(logits)}))
        << kind;
    EXPECT_FALSE(test::close(plain, logits, {.absolute = 0.1})) << kind << ": has no effect";
  }
}

TEST(PeftGolden, MergedLogitsAreThoseOfPeftInF64) {
  const Safetensors expected = read_safetensors(golden("lora_golden.safetensors"));
  for (const std::string kind : kKinds) {
    Base base;
    base.load(golden("peft/" + kind));
    nn::merge_adapters(base.model, nn::Originals::drop);
    const auto logits = expected.tensors.at("logits." + kind).to_vector<double>();
    EXPECT_TRUE(test::close(base.logits(), logits, {.absolute = kForward * largest(logits)}))
        << kind;
  }
}

TEST(Peft, RanksAndAlphasAreThoseOfThePatterns) {
  Base base;
  base.load(golden("peft/patterns"));
  std::map<std::string, std::pair<int64_t, double>> shapes;
  for (const auto& [layer, adapter] : nn::adapters_of(base.model, "own")) {
    shapes[layer->path()] = {adapter->shape().rank, adapter->shape().alpha};
  }
  const std::map<std::string, std::pair<int64_t, double>> expected = {{"h.0.attn.qkv", {5, 9}},
                                                                      {"h.0.mlp.fc", {2, 9}},
                                                                      {"h.1.attn.qkv", {5, 4}},
                                                                      {"h.1.mlp.fc", {1, 4}}};
  EXPECT_EQ(shapes, expected);
}

TEST(Peft, WhatIsWrittenIsReadAgainBitForBit) {
  for (const std::string kind : kKinds) {
    Base base;
    const PeftConfig config = base.load(golden("peft/" + kind));
    const ScratchDirectory scratch;
    const std::string directory = scratch.path() + "/adapter";
    save_peft(base.model, "own", config.lora, {"some/base", ""}, directory);
    Base again;
    const PeftConfig read = again.load(directory);
    EXPECT_EQ(read.base.name, "some/base");
    EXPECT_TRUE(read.unknown.empty());
    const State expected = base.model.state();
    for (const auto& [name, tensor] : again.model.state().tensors) {
      EXPECT_TRUE(test::same_bits(tensor, expected.tensor(name))) << kind << ": " << name;
    }
    // Names and bytes are those of PEFT's own file.
    const auto theirs =
        read_safetensors(golden("peft/" + kind + "/adapter_model.safetensors")).tensors;
    const auto ours = read_safetensors(directory + "/adapter_model.safetensors").tensors;
    ASSERT_EQ(ours.size(), theirs.size()) << kind;
    for (const auto& [name, tensor] : theirs) {
      ASSERT_TRUE(ours.contains(name)) << name;
      EXPECT_TRUE(test::same_bits(ours.at(name), tensor)) << name;
    }
  }
}

TEST(Peft, NamesLayersAsHuggingFaceDoes) {
  EXPECT_EQ(peft_layer_name("h.11.attn.qkv"), "transformer.h.11.attn.c_attn");
  EXPECT_EQ(peft_layer_name("h.0.attn.proj"), "transformer.h.0.attn.c_proj");
  EXPECT_EQ(peft_layer_name("h.0.mlp.fc"), "transformer.h.0.mlp.c_fc");
  EXPECT_EQ(peft_layer_name("h.0.mlp.proj"), "transformer.h.0.mlp.c_proj");
  EXPECT_EQ(peft_layer_name("layers.3.self_attn.q_proj"), "model.layers.3.self_attn.q_proj");
  EXPECT_EQ(peft_layer_name("layers.3.mlp.down_proj"), "model.layers.3.mlp.down_proj");
  EXPECT_EQ(peft_layer_name("lm_head"), "lm_head");
  EXPECT_EQ(peft_layer_name("encoder.first"), "encoder.first");
}

TEST(Peft, LlamaGoesByTheNamesThatItHasThere) {
  const nn::LlamaConfig small{.vocab_size = 32,
                              .seq_len = 8,
                              .num_layers = 1,
                              .num_heads = 4,
                              .num_key_value_heads = 2,
                              .hidden_size = 16,
                              .intermediate_size = 24};
  nn::Llama model(small, 1);
  const nn::LoraConfig config{.rank = 2, .alpha = 4};
  nn::add_lora(model, "own", config, model.dropout_key(), 1, peft_layer_name);
  const ScratchDirectory scratch;
  save_peft(model, "own", config, {}, scratch / "adapter");
  const auto tensors = read_safetensors(scratch / "adapter/adapter_model.safetensors").tensors;
  // q, k, v, o, gate, up and down; the head of an untied model has none.
  EXPECT_EQ(tensors.size(), 14u);
  const std::string layer = "base_model.model.model.layers.0.";
  EXPECT_EQ(tensors.at(layer + "self_attn.k_proj.lora_B.weight").shape(), (Shape{8, 2}));
  EXPECT_EQ(tensors.at(layer + "mlp.down_proj.lora_A.weight").shape(), (Shape{2, 24}));
  const Json written = Json::parse(content_of(scratch / "adapter/adapter_config.json"), "json");
  EXPECT_FALSE(written.at("fan_in_fan_out").boolean());
  nn::Llama again(small, 1);
  load_peft(again, "own", scratch / "adapter", again.dropout_key());
  const State expected = model.state();
  for (const auto& [name, tensor] : again.state().tensors) {
    EXPECT_TRUE(test::same_bits(tensor, expected.tensor(name))) << name;
  }
}

// A copy of a golden adapter that can be spoiled.
struct Copy {
  ScratchDirectory scratch;
  std::string directory = scratch.path() + "/adapter";
  std::string config_path = directory + "/adapter_config.json";
  std::string tensors_path = directory + "/adapter_model.safetensors";

  explicit Copy(const std::string& kind) {
    std::filesystem::copy(golden("peft/" + kind), directory);
  }
  void write_config(const std::string& text) const {
    scratch.write("adapter/adapter_config.json", text);
  }
  void set(const std::string& key, const Json& value) const {
    Json json = Json::parse(map_file(config_path).text(), config_path);
    write_config(json.set(key, value).to_text());
  }
  void change_tensors(const std::function<void(std::map<std::string, Tensor>&)>& change) const {
    auto tensors = read_safetensors(tensors_path).tensors;
    change(tensors);
    write_safetensors(tensors_path, tensors);
  }
  // The error of loading it, which leaves the model as it was.
  std::string refusal() const {
    Base base;
    const size_t before = base.model.parameters().size();
    std::string text;
    try {
      base.load(directory);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(base.model.parameters().size(), before);
    EXPECT_TRUE(base.model.parameters().front()->trainable());
    return text;
  }
  // Whether the error names all of these.
  testing::AssertionResult refuses(std::initializer_list<std::string> parts) const {
    const std::string text = refusal();
    for (const std::string& part : parts) {
      if (text.find(part) != std::string::npos) continue;
      return testing::AssertionFailure() << "no '" << part << "' in '" << text << "'";
    }
    return testing::AssertionSuccess() << text;
  }
};

TEST(PeftRefuses, EveryKeyThatAsksForAnotherComputation) {
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"use_dora", true},
      {"use_qalora", true},
      {"lora_bias", true},
      {"bias", "all"},
      {"bias", "lora_only"},
      {"modules_to_save", Json::array().push("lm_head")},
      {"layers_to_transform", Json::array().push(0)},
      {"exclude_modules", "c_attn"},
      {"layer_replication", Json::array().push(Json::array().push(0).push(1))},
      {"target_parameters", Json::array().push("weight")},
      {"trainable_token_indices", Json::array().push(1)},
      {"megatron_config", Json::object().set("a", 1)},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "loftq"},
      {"peft_type", "IA3"},
  };
  for (const auto& [key, value] : wrong) {
    const Copy copy("list");
    copy.set(key, value);
    EXPECT_TRUE(copy.refuses({"adapter_config.json", key, value.to_text()})) << key;
  }
}

TEST(PeftRefuses, RanksAlphasAndOtherValuesThatCannotBe) {
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"r", 0},
      {"r", -4},
      {"r", 2.5},
      {"r", "8"},
      {"lora_alpha", 0},
      {"lora_alpha", "nan"},
      {"lora_dropout", 1},
      {"lora_dropout", -0.5},
      {"use_rslora", 1},
      {"target_modules", Json::array()},
      {"target_modules", "(c_attn"},
      {"rank_pattern", Json::object().set("c_attn", 0)},
      {"alpha_pattern", Json::object().set("c_attn", 0)},
  };
  for (const auto& [key, value] : wrong) {
    const Copy copy("list");
    copy.set(key, value);
    const bool named = key == "target_modules" && value.is(Json::Kind::text);
    EXPECT_TRUE(copy.refuses({"adapter_config.json", named ? "(c_attn" : key})) << key;
  }
}

TEST(PeftRefuses, AnAdapterOfAnotherBase) {
  {
    const Copy copy("list");
    copy.set("target_modules", Json::array().push("q_proj").push("v_proj"));
    EXPECT_TRUE(copy.refuses({"adapter_config.json", "target_modules", "another base"}));
  }
  const std::string name = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight";
  {
    const Copy copy("list");
    copy.change_tensors([&](auto& tensors) { tensors[name] = zeros({192, 4}); });
    EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", name, "[192, 4]", "[96, 4]"}));
  }
  {
    const Copy copy("list");
    copy.change_tensors([&](auto& tensors) { tensors.erase(name); });
    EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", name}));
  }
  {
    const Copy copy("list");
    const std::string extra = "base_model.model.transformer.h.2.attn.c_attn.lora_B.weight";
    copy.change_tensors([&](auto& tensors) { tensors[extra] = zeros({96, 4}); });
    EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", extra, "another base"}));
  }
  {
    const Copy copy("list");
    copy.set("r", 8);
    EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", "lora_A.weight", "[8, 32]"}));
  }
  {
    // A rank beyond memory is found before anything of that size is made.
    const Copy copy("list");
    copy.set("r", int64_t{1} << 60);
    EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", "lora_A.weight"}));
  }
}

// The weights decide, not the file that they came from or the adapters over them.
TEST(PeftRefuses, AnAdapterOfOtherWeightsOfTheSameShapes) {
  const ScratchDirectory scratch;
  Base base;
  const std::string checksum = base_checksum(base.model);
  const PeftConfig config = base.load(golden("peft/list"));
  EXPECT_EQ(base_checksum(base.model), checksum);
  save_peft(base.model, "own", config.lora, {"the/base", checksum}, scratch / "adapter");
  Base same;
  EXPECT_EQ(same.load(scratch / "adapter").base.checksum, checksum);
  Base other;
  State state = other.model.state();
  std::vector<float> values = state.tensor("ln_f.bias").to_vector<float>();
  values[3] = std::nextafter(values[3], 10.0F);  // one bit of one weight
  state.tensors["ln_f.bias"] = tensor(values, {32});
  other.model.load(state);
  const size_t parameters = other.model.parameters().size();
  const auto error = error_of<InvalidArgument>([&] { other.load(scratch / "adapter"); });
  for (const std::string& part :
       {scratch / "adapter/adapter_model.safetensors", std::string("other weights ('the/base')"),
        checksum, base_checksum(other.model)}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
  }
  EXPECT_EQ(other.model.parameters().size(), parameters);
}

TEST(PeftRefuses, AFactorThatIsNotFinite) {
  const Copy copy("list");
  const std::string name = "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight";
  copy.change_tensors([&](auto& tensors) {
    std::vector<float> values = tensors.at(name).template to_vector<float>();
    values[5] = std::numeric_limits<float>::infinity();
    tensors[name] = tensor(values, tensors.at(name).shape());
  });
  EXPECT_TRUE(copy.refuses({"adapter_model.safetensors", name, "infinity (element 5 of"}));
}

TEST(PeftRefuses, TargetsThatChooseNothingByFileAndKey) {
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"target_modules", "no_such_layer"},
      {"target_modules", "(((((x+)+)+)+)+)+!|(a*)*[0-9]{1,9}(?R"},
      {"target_modules", Json()},
      {"rank_pattern", Json::object().set("(c_attn", 4)},
      {"alpha_pattern", Json::object().set("(c_attn", 4)}};
  for (const auto& [key, value] : wrong) {
    const Copy copy("list");
    copy.set(key, value);
    const std::string file = copy.directory + "/adapter_config.json";
    EXPECT_TRUE(copy.refuses({file, key})) << key << " " << value.to_text();
  }
}

TEST(PeftRefuses, WhatIsNoLinearAdapter) {
  {
    const Copy copy("list");
    copy.change_tensors([](auto& tensors) {
      tensors["base_model.model.transformer.wte.lora_embedding_A"] = zeros({4, 64});
    });
    EXPECT_TRUE(copy.refuses({"lora_embedding_A"}));
  }
  {
    const Copy copy("list");
    copy.change_tensors([](auto& tensors) {
      Tensor& first = tensors.begin()->second;
      first = cast(first, DType::i32);
    });
    EXPECT_TRUE(copy.refuses({"lora_A.weight", "i32"}));
  }
}

// The file is not opened: it may be anything, or unreadable.
TEST(PeftRefuses, APickle) {
  const Copy copy("list");
  std::filesystem::rename(copy.tensors_path, copy.directory + "/adapter_model.bin");
  EXPECT_TRUE(copy.refuses({"adapter_model.bin", "pickle", "safetensors"}));
  std::filesystem::remove(copy.directory + "/adapter_model.bin");
  std::filesystem::create_directory(copy.directory + "/adapter_model.bin");
  EXPECT_TRUE(copy.refuses({"adapter_model.bin", "pickle"}));
}

TEST(PeftRefuses, FilesThatAreMissingOrNoJson) {
  {
    const Copy copy("list");
    std::filesystem::remove(copy.config_path);
    EXPECT_TRUE(copy.refuses({"adapter_config.json"}));
  }
  {
    const Copy copy("list");
    copy.write_config("[]");
    EXPECT_TRUE(copy.refuses({"adapter_config.json", "object"}));
  }
  {
    const Copy copy("list");
    copy.write_config(R"({"peft_type": "LORA"})");
    EXPECT_TRUE(copy.refuses({"adapter_config.json", "target_modules"}));
  }
}

TEST(Peft, TakesTheLeastThatAConfigMayHold) {
  const Copy copy("list");
  copy.write_config(R"({"peft_type": "LORA", "target_modules": ["c_attn"], "r": 4})");
  Base base;
  EXPECT_NO_THROW(base.load(copy.directory));
  EXPECT_EQ(nn::adapters_of(base.model, "own").size(), 2U);
}

TEST(Peft, TakesTensorsThatCarryTheAdaptersName) {
  const Copy copy("list");
  copy.change_tensors([](auto& tensors) {
    std::map<std::string, Tensor> named;
    for (const auto& [name, tensor] : tensors) {
      const size_t end = name.rfind(".weight");
      named[name.substr(0, end) + ".default.weight"] = tensor;
    }
    tensors = named;
  });
  Base base;
  EXPECT_NO_THROW(base.load(copy.directory));
  EXPECT_EQ(nn::adapters_of(base.model, "own").size(), 2U);
}

TEST(Peft, TellsTheKeysThatItDoesNotKnow) {
  const Copy copy("list");
  copy.set("use_tomorrow", true);
  copy.set("nothing_yet", Json());
  EXPECT_EQ(read_peft_config(copy.directory).unknown, std::vector<std::string>{"use_tomorrow"});
}

}  // namespace
}  // namespace faultline
