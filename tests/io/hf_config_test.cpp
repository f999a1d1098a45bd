#include "io/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

// As transformers 5.24 writes it.
const char kGpt2[] = R"({"activation_function":"gelu_new","add_cross_attention":false,
"architectures":["GPT2LMHeadModel"],"attn_pdrop":0.1,"bos_token_id":0,"dtype":"float32",
"embd_pdrop":0.1,"eos_token_id":3,"initializer_range":0.03,"layer_norm_epsilon":1e-06,
"model_type":"gpt2","n_embd":24,"n_head":3,"n_inner":null,"n_layer":5,"n_positions":16,
"pad_token_id":null,"reorder_and_upcast_attn":false,"resid_pdrop":0.1,
"scale_attn_by_inverse_layer_idx":false,"scale_attn_weights":true,"summary_activation":null,
"summary_first_dropout":0.1,"summary_proj_to_labels":true,"summary_type":"cls_index",
"summary_use_proj":true,"tie_word_embeddings":true,"transformers_version":"5.24.0",
"use_cache":true,"vocab_size":40})";
const char kLlama[] = R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
"attention_dropout":0.0,"bos_token_id":1,"dtype":"bfloat16","eos_token_id":[2,7],"head_dim":4,
"hidden_act":"silu","hidden_size":8,"initializer_range":0.02,"intermediate_size":12,
"max_position_embeddings":64,"mlp_bias":false,"model_type":"llama","num_attention_heads":4,
"num_hidden_layers":2,"num_key_value_heads":2,"pad_token_id":null,"pretraining_tp":1,
"rms_norm_eps":1e-05,"rope_parameters":{"factor":4.0,"high_freq_factor":4.0,
"low_freq_factor":1.0,"original_max_position_embeddings":16,"rope_theta":500000.0,
"rope_type":"llama3"},"tie_word_embeddings":false,"transformers_version":"5.24.0",
"use_cache":true,"vocab_size":40})";

Json parsed(const std::string& text) { return Json::parse(text, "test"); }

HfConfig read(const Json& json) { return read_hf_config(json, "config.json"); }
HfConfig read(const char* text) { return read(parsed(text)); }

// The object without a key.
Json without(const Json& json, const std::string& key) {
  std::vector<JsonMember> members;
  for (const JsonMember& member : json.members()) {
    if (member.key != key) members.push_back(member);
  }
  return Json::object(members);
}

// Everything that a configuration says, to compare two.
std::string content(const HfConfig& config) { return hf_config_json(config).to_text(); }

TEST(HfConfig, Gpt2IsReadAsTransformersWritesIt) {
  const HfConfig config = read(kGpt2);
  const auto& model = std::get<nn::Gpt2Config>(config.model);
  EXPECT_EQ(model.vocab_size, 40);
  EXPECT_EQ(model.seq_len, 16);
  EXPECT_EQ(model.hidden_size, 24);
  EXPECT_EQ(model.num_heads, 3);
  EXPECT_EQ(model.num_layers, 5);
  EXPECT_EQ(model.layer_norm_epsilon, 1e-6);
  EXPECT_EQ(model.dropout, 0.1);
  EXPECT_EQ(model.init_std, 0.03);
  EXPECT_EQ(config.tokens, (SpecialTokens{.begin = 0, .ends = {3}, .padding = {}}));
  EXPECT_EQ(config.dtype, DType::f32);
  EXPECT_STREQ(config.architecture(), "GPT2LMHeadModel");
}

TEST(HfConfig, LlamaIsReadAsTransformersWritesIt) {
  const HfConfig config = read(kLlama);
  const auto& model = std::get<nn::LlamaConfig>(config.model);
  EXPECT_EQ(model.vocab_size, 40);
  EXPECT_EQ(model.seq_len, 64);
  EXPECT_EQ(model.hidden_size, 8);
  EXPECT_EQ(model.intermediate_size, 12);
  EXPECT_EQ(model.num_layers, 2);
  EXPECT_EQ(model.num_heads, 4);
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_EQ(model.head_size, 4);
  EXPECT_EQ(model.rms_norm_epsilon, 1e-5);
  EXPECT_EQ(model.rope.scaling, nn::RopeScaling::llama3);
  EXPECT_EQ(model.rope.theta, 500000);
  EXPECT_EQ(model.rope.factor, 4);
  EXPECT_EQ(model.rope.original_positions, 16);
  EXPECT_FALSE(model.tie_embeddings);
  EXPECT_EQ(config.tokens.ends, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(config.dtype, DType::bf16);
}

// torch_dtype became dtype in transformers 4.56; rope_theta and rope_scaling became rope_parameters
// in 5.0.
TEST(HfConfig, TheSpellingOfTransformers4SaysTheSame) {
  Json gpt2 = without(parsed(kGpt2), "dtype");
  gpt2.set("torch_dtype", "float32").set("n_ctx", 16);
  EXPECT_EQ(content(read(gpt2)), content(read(kGpt2)));

  const Json rope = parsed(kLlama).at("rope_parameters");
  Json llama = without(without(parsed(kLlama), "rope_parameters"), "dtype");
  llama.set("torch_dtype", "bfloat16").set("rope_theta", rope.at("rope_theta"));
  llama.set("rope_scaling", without(rope, "rope_theta"));
  EXPECT_EQ(content(read(llama)), content(read(kLlama)));

  Json older = without(without(rope, "rope_theta"), "rope_type");
  llama.set("rope_scaling", older.set("type", "llama3"));
  EXPECT_EQ(content(read(llama)), content(read(kLlama)));
}

TEST(HfConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  const HfConfig gpt2 = read(R"({"model_type":"gpt2"})");
  EXPECT_EQ(std::get<nn::Gpt2Config>(gpt2.model).vocab_size, 50257);
  EXPECT_EQ(std::get<nn::Gpt2Config>(gpt2.model).num_layers, 12);
  EXPECT_EQ(std::get<nn::Gpt2Config>(gpt2.model).dropout, 0.1);
  const HfConfig llama = read(R"({"model_type":"llama","rope_theta":20000})");
  const auto& model = std::get<nn::LlamaConfig>(llama.model);
  EXPECT_EQ(model.num_key_value_heads, 32);
  EXPECT_EQ(model.head_size, 128);
  EXPECT_EQ(model.rms_norm_epsilon, 1e-6);
  EXPECT_EQ(model.rope.theta, 20000);
  EXPECT_EQ(model.rope.scaling, nn::RopeScaling::none);
}

TEST(HfConfig, WhatIsWrittenReadsBackTheSame) {
  const std::vector<std::string> ropes = {
      R"({"rope_type":"default","rope_theta":123.5})",
      R"({"rope_type":"linear","rope_theta":10000.0,"factor":2.5})",
      R"({"rope_type":"dynamic","rope_theta":10000.0,"factor":2.0})",
      R"({"rope_type":"yarn","rope_theta":10000.0,"factor":4.0,"beta_fast":16,"beta_slow":2,
          "attention_factor":1.25,"original_max_position_embeddings":16})",
      R"({"rope_type":"yarn","rope_theta":10000.0,"factor":4.0,"mscale":0.7,"mscale_all_dim":1.0,
          "truncate":false,"original_max_position_embeddings":16})",
      R"({"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,"low_freq_factor":1.0,
          "high_freq_factor":4.0,"original_max_position_embeddings":32})"};
  for (const std::string& rope : ropes) {
    SCOPED_TRACE(rope);
    const HfConfig config = read(parsed(kLlama).set("rope_parameters", parsed(rope)));
    const Json written = hf_config_json(config);
    EXPECT_EQ(content(read(written)), written.to_text());
    // Each version's spelling alone says all.
    EXPECT_EQ(content(read(without(written, "rope_parameters"))), written.to_text());
    const Json now = without(without(written, "rope_scaling"), "rope_theta");
    EXPECT_EQ(content(read(now)), written.to_text());
  }
  EXPECT_EQ(content(read(hf_config_json(read(kGpt2)))), content(read(kGpt2)));
}

TEST(HfConfig, KeysThatChangeNothingAreIgnored) {
  Json json = parsed(kGpt2);
  json.set("_name_or_path", "gpt2").set("_attn_implementation_autoset", true);
  json.set("task_specific_params", parsed(R"({"text-generation":{"do_sample":true}})"));
  json.set("id2label", parsed(R"({"0":"LABEL_0"})")).set("gradient_checkpointing", true);
  // Not known, but off.
  json.set("some_new_feature", false).set("another", Json()).set("third", Json::array());
  EXPECT_EQ(content(read(json)), content(read(kGpt2)));
}

TEST(HfConfig, AnIdOutsideTheVocabularyIsNobodys) {
  Json json = parsed(kGpt2);
  json.set("bos_token_id", 50256).set("eos_token_id", 50256).set("pad_token_id", -1);
  EXPECT_EQ(read(json).tokens, SpecialTokens{});
}

struct Refused {
  const char* base;
  std::string key;
  std::string value;
  std::string said;
};

std::vector<Refused> refusals() {
  return {
      {kGpt2, "architectures", R"(["NoSuchModel"])", "\"architectures\" is [\"NoSuchModel\"]"},
      {kGpt2, "architectures", R"(["GPT2Model"])",
       "known are GPT2LMHeadModel and LlamaForCausalLM"},
      {kGpt2, "architectures", "[]", "a list of one name"},
      {kGpt2, "architectures", R"("GPT2LMHeadModel")", "a list of one name"},
      {kGpt2, "model_type", R"("no_such")", "known are gpt2 and llama"},
      {kGpt2, "model_type", R"("llama")", "contradicts architectures"},
      {kLlama, "model_type", R"("mistral")", "known are gpt2 and llama"},
      {kGpt2, "n_layer", R"("two")", "\"n_layer\" is \"two\": should be a whole number"},
      {kGpt2, "n_layer", "1000000000000", "should be a whole number from 1 to 2147483647"},
      {kGpt2, "n_layer", "0", "from 1"},
      {kGpt2, "n_layer", "-2", "\"n_layer\" is -2"},
      {kGpt2, "n_layer", "2.0", "whole number"},
      {kGpt2, "n_layer", "[2]", "whole number"},
      {kGpt2, "n_layer", "18446744073709551615", "whole number"},
      {kGpt2, "vocab_size", "-1", "from 1"},
      {kGpt2, "n_positions", "true", "whole number"},
      {kGpt2, "n_head", "7", "\"n_head\" is 7: does not divide n_embd 24"},
      {kGpt2, "n_inner", "48", "should be 4 times n_embd 24"},
      {kGpt2, "activation_function", R"("relu")", "is not computed here"},
      {kGpt2, "activation_function", "7", "should be a string"},
      {kGpt2, "layer_norm_epsilon", "0", "should be positive"},
      {kGpt2, "layer_norm_epsilon", R"("nan")", "should be a number"},
      {kGpt2, "initializer_range", "-0.1", "should be positive"},
      {kGpt2, "attn_pdrop", "0.2", "differs from resid_pdrop 0.1"},
      {kGpt2, "resid_pdrop", "1.0", "[0, 1)"},
      {kGpt2, "tie_word_embeddings", "false", "this model's head is its token embedding"},
      {kGpt2, "tie_word_embeddings", "1", "should be true or false"},
      {kGpt2, "scale_attn_weights", "false", "\"scale_attn_weights\" is false"},
      {kGpt2, "scale_attn_by_inverse_layer_idx", "true", "no layer scales its scores"},
      {kGpt2, "reorder_and_upcast_attn", "true", "not supported"},
      {kGpt2, "add_cross_attention", "true", "not supported"},
      {kGpt2, "is_encoder_decoder", "true", "not supported"},
      {kGpt2, "pruned_heads", R"({"0":[1]})", "not supported"},
      {kGpt2, "quantization_config", R"({"bits":4})", "not supported"},
      {kGpt2, "auto_map", R"({"AutoModel":"evil.py"})", "not supported"},
      {kGpt2, "some_new_feature", "true", "is not known here and may change"},
      {kGpt2, "dtype", R"("float64")", "float32, float16 or bfloat16"},
      {kGpt2, "torch_dtype", R"("float16")", "contradicts dtype"},
      {kGpt2, "eos_token_id", R"("</s>")", "whole number"},
      {kGpt2, "eos_token_id", "[1,null]", "an id or a list of ids"},
      {kLlama, "num_attention_heads", "3", "does not divide num_attention_heads 3"},
      {kLlama, "num_key_value_heads", "3", "does not divide num_attention_heads 4"},
      {kLlama, "head_dim", "3", "a head of 3 is odd"},
      {kLlama, "hidden_act", R"("gelu")", "is not computed here; silu is"},
      {kLlama, "sliding_window", "4096", "not supported"},
      {kLlama, "attention_dropout", "0.1", "set it to 0"},
      {kLlama, "partial_rotary_factor", "0.5", "all of a head is rotated"},
      {kLlama, "rms_norm_eps", "-1e-5", "should be positive"},
      {kLlama, "rope_theta", "10000", "contradicts rope_parameters, which has 500000"},
      {kLlama, "rope_scaling", R"({"rope_type":"linear","factor":2,"rope_theta":500000})",
       "contradicts rope_parameters"},
      {kLlama, "rope_parameters", "7", "should be an object"},
      {kLlama, "rope_parameters", R"({"rope_type":"longrope","factor":2})",
       "rope_parameters: \"rope_type\" is \"longrope\""},
      {kLlama, "rope_parameters", R"({"rope_type":"linear","type":"yarn","factor":2})",
       "contradicts rope_type"},
      {kLlama, "rope_parameters", R"({"rope_type":"linear"})", "\"factor\" is absent"},
      {kLlama, "rope_parameters", R"({"rope_type":"linear","factor":0.5})", "a number from 1"},
      {kLlama, "rope_parameters", R"({"rope_type":"linear","factor":2,"beta_fast":1})",
       "\"beta_fast\" is 1: is not known here"},
      {kLlama, "rope_parameters",
       R"({"rope_type":"linear","factor":2,"partial_rotary_factor":0.5})",
       "all of a head is rotated"},
      {kLlama, "rope_parameters", R"({"rope_type":"default","rope_theta":-1})", "positive"},
      {kLlama, "rope_parameters", R"({"rope_type":"default","factor":2})", "scales nothing"},
      {kLlama, "rope_parameters",
       R"({"rope_type":"dynamic","factor":2,"original_max_position_embeddings":32})",
       "begins at max_position_embeddings 64"},
      {kLlama, "rope_parameters",
       R"({"rope_type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":4})",
       "above low_freq_factor"},
      {kLlama, "rope_parameters", R"({"rope_type":"yarn","factor":2,"truncate":1})",
       "\"truncate\" is 1: should be true or false"},
      {kLlama, "rope_parameters", R"({"rope_type":"yarn","factor":2,"mscale":-0.7})",
       "should not be negative"},
      {kLlama, "rope_parameters", R"({"rope_type":"yarn","factor":2,"mscale":0.7})", "mscale"},
      {kLlama, "rope_parameters", R"({"rope_type":"yarn","factor":2,"beta_fast":1,"beta_slow":9})",
       "beta_fast"},
  };
}

TEST(HfConfig, EachImpossibleValueIsRefusedWithItsFileKeyAndValue) {
  for (const Refused& refused : refusals()) {
    SCOPED_TRACE(refused.key + ": " + refused.value);
    const Json json = parsed(refused.base).set(refused.key, parsed(refused.value));
    const std::string text = error_of<InvalidArgument>([&] { read(json); });
    EXPECT_THAT(text, testing::StartsWith("config.json: "));
    EXPECT_THAT(text, HasSubstr(refused.said));
  }
}

TEST(HfConfig, WhatIsNoConfigurationIsRefused) {
  for (const char* text : {"[]", "7", "null", "\"gpt2\""}) {
    EXPECT_THAT(error_of<InvalidArgument>([&] { read(text); }),
                HasSubstr("should be a JSON object"));
  }
  EXPECT_THAT(error_of<InvalidArgument>([] { read("{}"); }), HasSubstr("model_type"));
}

// Whatever is changed, the answer is a configuration that can be written, or an error of ours.
RC_GTEST_PROP(HfConfig, RandomDamageIsReadOrRefused, ()) {
  std::string text = *rc::gen::element<std::string>(kGpt2, kLlama);
  const auto changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    text[at] = *rc::gen::element('0', '9', '-', '"', ',', '{', '}', '[', ']', '.', 'e', '\xff');
  }
  try {
    const HfConfig config = read(parsed(text));
    RC_ASSERT(config.num_layers() > 0);
    RC_ASSERT(content(read(hf_config_json(config))) == content(config));
  } catch (const InvalidArgument& error) {
    const std::string said = error.what();
    RC_ASSERT(said.starts_with("config.json") || said.starts_with("test"));
    RC_ASSERT(said.find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace faultline
