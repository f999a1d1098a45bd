#include "io/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

GenerationConfig read(const std::string& text) {
  const ScratchDirectory scratch;
  scratch.write("generation_config.json", text);
  return read_generation_config(scratch.path(), 100);
}

TEST(GenerationConfig, IsReadAsTransformersWritesIt) {
  const GenerationConfig config = read(R"({"_from_model_config":true,"bos_token_id":1,
      "do_sample":true,"eos_token_id":[2,7],"max_length":4096,"output_attentions":false,
      "pad_token_id":0,"temperature":0.6,"top_k":50,"top_p":0.9,
      "transformers_version":"5.24.0","use_cache":true})");
  EXPECT_EQ(config.tokens, (SpecialTokens{.begin = 1, .ends = {2, 7}, .padding = 0}));
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 50);
  EXPECT_EQ(config.top_p, 0.9);
}

TEST(GenerationConfig, IsEmptyWithoutAFile) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read_generation_config(scratch.path(), 0), GenerationConfig{});
  EXPECT_EQ(read("{}"), GenerationConfig{});
}

TEST(GenerationConfig, WhatIsWrittenReadsBackTheSame) {
  GenerationConfig config;
  config.tokens = {.begin = {}, .ends = {5}, .padding = 3};
  config.do_sample = false;
  config.temperature = 0.1;
  config.top_p = 0.95;
  EXPECT_EQ(read(generation_config_json(config).to_text()), config);
  EXPECT_EQ(read(generation_config_json({}).to_text()), GenerationConfig{});
}

TEST(GenerationConfig, EachImpossibleValueIsRefusedWithItsFileAndKey) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"temperature":-1})", "\"temperature\" is -1"},
      {R"({"temperature":"hot"})", "should be a number"},
      {R"({"top_k":-1})", "\"top_k\" is -1"},
      {R"({"top_k":1.5})", "whole number"},
      {R"({"top_p":0})", "above 0 and at most 1"},
      {R"({"top_p":1.01})", "above 0 and at most 1"},
      {R"({"do_sample":1})", "true or false"},
      {R"({"eos_token_id":-7})", "\"eos_token_id\" is -7"},
      {R"({"eos_token_id":[1,"2"]})", "a list of ids"},
      {R"({"repetition_penalty":1.2})", "\"repetition_penalty\" is 1.2: is not supported"},
      {R"({"num_beams":4})", "\"num_beams\" is 4"},
      {R"({"bad_words_ids":[[1]]})", "\"bad_words_ids\" is [[1]]"},
      {R"({"shiny_new_sampler":true})", "is not known here"},
      {R"([])", "should be a JSON object"},
      {R"({"top_k":1,"top_k":2})", "twice"},
      {R"({"top_k":)", "not JSON"}};
  for (const auto& [text, said] : refused) {
    SCOPED_TRACE(text);
    const std::string error = error_of<InvalidArgument>([&text = text] { read(text); });
    EXPECT_THAT(error, HasSubstr("generation_config.json: "));
    EXPECT_THAT(error, HasSubstr(said));
  }
}

}  // namespace
}  // namespace faultline
