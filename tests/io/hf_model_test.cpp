#include "io/hf_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/functional.h"
#include "io/hf_tensors.h"
#include "io/hf_weights.h"
#include "tests/io/hf_folder.h"
#include "tests/support/compare.h"

namespace faultline {
namespace {

constexpr double kEps = 0x1p-23;
// Two layers are about a dozen products in a row, each over up to 64 terms whose rounding grows
// like the root of their number (8); the cosines of transformers come from angles in f32, off by
// half an ulp of at most 24 positions. Errors are relative to the largest element.
constexpr double kBound = (12 * 8 + 24) * kEps;

testing::AssertionResult gives_the_golden_logits(const HfFolder& folder) {
  HfModel loaded = load_hf_model(folder.path());
  loaded.model->set_training(false);
  const NoGrad off;
  const Tensor logits = (*loaded.model)(folder.tokens(), nn::Mask{});
  const auto expected = folder.logits().to_vector<double>();
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return test::close(logits.to_vector<double>(), expected, {.absolute = kBound * largest});
}

// The same tensors by name, shape, dtype and bits.
void expect_same(const std::map<std::string, Tensor>& found,
                 const std::map<std::string, Tensor>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(test::same_bits(found.at(name), tensor)) << name;
  }
}

State loaded_state(const std::string& folder) { return load_hf_model(folder).model->state(); }

class HfModels : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, HfModels, testing::Values("hf_gpt2", "hf_llama"));

TEST_P(HfModels, AFolderOfTransformersGivesItsLogits) {
  EXPECT_TRUE(gives_the_golden_logits(HfFolder(GetParam())));
}

TEST_P(HfModels, WhatIsWrittenHoldsTheTensorsThatTransformersWrote) {
  const HfFolder folder(GetParam());
  const HfModel loaded = load_hf_model(folder.path());
  const ScratchDirectory out;
  save_hf_model(out.path(), loaded.config, {}, loaded.model->state());
  const Safetensors written = read_safetensors(out / "model.safetensors");
  expect_same(written.tensors, folder.tensors());
  EXPECT_EQ(written.metadata.at("format"), "pt");
  expect_same(loaded_state(out.path()).tensors, loaded.model->state().tensors);
}

TEST_P(HfModels, ShardsHoldTheSameAndNoMoreThanAsked) {
  const HfFolder folder(GetParam());
  const HfModel loaded = load_hf_model(folder.path());
  const ScratchDirectory out;
  constexpr int64_t kShard = 6000;
  save_hf_model(out.path(), loaded.config, {}, loaded.model->state(), {.shard_bytes = kShard});
  EXPECT_FALSE(std::filesystem::exists(out / "model.safetensors"));
  const Json index = Json::parse(content_of(out / "model.safetensors.index.json"), "index");
  int64_t total = 0;
  int shards = 0;
  for (const std::string& name : out.names()) {
    if (!name.ends_with(".safetensors")) continue;
    ++shards;
    int64_t bytes = 0;
    for (const auto& [key, tensor] : read_safetensors(out / name).tensors) {
      bytes += tensor.numel() * 4;
      EXPECT_EQ(index.at("weight_map").at(key).text(), name);
    }
    EXPECT_LE(bytes, kShard) << name;
    total += bytes;
  }
  EXPECT_GT(shards, 3);
  EXPECT_EQ(index.at("metadata").at("total_size").integer(), total);
  expect_same(loaded_state(out.path()).tensors, loaded.model->state().tensors);
}

TEST_P(HfModels, HalfPrecisionIsReadAsTheSameNumbers) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const HfFolder folder(GetParam());
    const State before = loaded_state(folder.path());
    folder.change([&](auto& tensors) {
      for (auto& [name, tensor] : tensors) tensor = cast(tensor, dtype);
    });
    folder.set("dtype", dtype == DType::f16 ? "float16" : "bfloat16");
    for (const auto& [name, tensor] : loaded_state(folder.path()).tensors) {
      const Tensor rounded = cast(cast(before.tensor(name), dtype), DType::f32);
      EXPECT_TRUE(test::same_bits(tensor, rounded)) << name;
    }
  }
}

TEST_P(HfModels, APartInHalfPrecisionIsNoContradiction) {
  const HfFolder folder(GetParam());
  folder.change([](auto& tensors) {
    auto& [name, tensor] = *tensors.begin();
    tensor = cast(tensor, DType::f16);
  });
  EXPECT_NO_THROW(load_hf_model(folder.path()));
}

// The file of the first GPT-2 has no "transformer.", causal masks beside the weights, and a
// configuration without dtype.
TEST(HfModel, TheFirstGpt2FilesAreReadToo) {
  const HfFolder folder("hf_gpt2");
  std::map<std::string, Tensor> bare;
  for (const auto& [name, tensor] : folder.tensors()) {
    bare[name.substr(std::string("transformer.").size())] = tensor;
  }
  for (const char* block : {"h.0.", "h.1."}) {
    bare[std::string(block) + "attn.bias"] = zeros({1, 1, 32, 32}, DType::u8);
    bare[std::string(block) + "attn.masked_bias"] = tensor<float>({-1e4F});
  }
  folder.write_tensors(bare);
  Json config = folder.config();
  config.set("dtype", Json()).set("n_ctx", 32);
  folder.write("config.json", config.to_text());
  EXPECT_TRUE(gives_the_golden_logits(folder));
}

TEST(HfModel, LlamaInTheSpellingOfTransformers4GivesTheSameLogits) {
  const HfFolder folder("hf_llama");
  const Json config = folder.config();
  Json scaling = config.at("rope_parameters");
  const Json theta = scaling.at("rope_theta");
  scaling.set("rope_theta", Json());
  folder.set("rope_parameters", Json());
  folder.set("rope_theta", theta);
  folder.set("rope_scaling", scaling);
  folder.set("torch_dtype", "float32");
  folder.set("dtype", Json());
  folder.change([](auto& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensor<float>({1, 2, 3, 4});
  });
  EXPECT_TRUE(gives_the_golden_logits(folder));
}

TEST(HfModel, ATiedHeadMayBeStoredTwice) {
  const HfFolder folder("hf_gpt2");
  folder.change(
      [](auto& tensors) { tensors["lm_head.weight"] = tensors["transformer.wte.weight"]; });
  EXPECT_TRUE(gives_the_golden_logits(folder));
}

TEST(HfModel, TiedLlamaHasNoHead) {
  const HfFolder folder("hf_llama");
  folder.set("tie_word_embeddings", true);
  folder.change([](auto& tensors) { tensors.erase("lm_head.weight"); });
  const HfModel loaded = load_hf_model(folder.path());
  EXPECT_FALSE(loaded.model->state().tensors.contains("lm_head.weight"));
  const ScratchDirectory out;
  save_hf_model(out.path(), loaded.config, {}, loaded.model->state());
  expect_same(read_safetensors(out / "model.safetensors").tensors, folder.tensors());
}

// 50257 rows stay 50257, and 50304 stay 50304: nothing is padded or cut.
TEST(HfModel, TheVocabularyKeepsItsSize) {
  const HfFolder folder("hf_gpt2");
  EXPECT_EQ(load_hf_model(folder.path()).model->model_shape().vocab_size, 48);
  folder.change([](auto& tensors) {
    Tensor& table = tensors["transformer.wte.weight"];
    table = cat(std::vector<Tensor>{table, zeros({3, 16}, DType::f32)}, 0);
  });
  folder.set("vocab_size", 51);
  const HfModel loaded = load_hf_model(folder.path());
  EXPECT_EQ(loaded.model->model_shape().vocab_size, 51);
  EXPECT_EQ(loaded.model->state().tensor("wte.weight").size(0), 51);
}

TEST(HfModel, ParametersAreCountedFromTheConfigurationAlone) {
  for (const char* name : {"hf_gpt2", "hf_llama"}) {
    const HfFolder folder(name);
    const HfModel loaded = load_hf_model(folder.path());
    EXPECT_EQ(hf_parameter_count(loaded.config),
              static_cast<double>(loaded.model->parameter_count()));
  }
}

TEST(HfModel, OnlyAModelsConfigurationMakesAFolder) {
  const HfFolder folder("hf_gpt2");
  EXPECT_TRUE(is_hf_folder(folder.path()));
  folder.write("config.json", R"({"format":1,"model":"tiny"})");
  EXPECT_FALSE(is_hf_folder(folder.path()));
  folder.write("config.json", "{torn");
  EXPECT_FALSE(is_hf_folder(folder.path()));
  EXPECT_FALSE(is_hf_folder(folder / "nothing"));
}

}  // namespace
}  // namespace faultline
