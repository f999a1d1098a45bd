#include "train/model_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "io/checkpoint.h"
#include "tests/io/hf_folder.h"
#include "tests/support/compare.h"
#include "tests/train/text.h"
#include "train/model_origin.h"
#include "train/open_tokenizer.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A run of two steps of a small model.
void make_run(const std::string& directory) {
  ConfigBuilder config = ConfigBuilder::preset("tiny");
  config.assign("hidden_size=16", "--set");
  config.assign("seq_len=16", "--set");
  Trainer trainer(config.build(), words());
  create_run(directory, make_record("tiny", config, {}), trainer, {});
  run(trainer, directory, {.steps = 2});
}

void expect_same(nn::LanguageModel& found, nn::LanguageModel& expected) {
  const State state = found.state();
  EXPECT_EQ(state.tensors.size(), expected.state().tensors.size());
  for (const auto& [name, tensor] : expected.state().tensors) {
    EXPECT_TRUE(test::same_bits(state.tensor(name), tensor)) << name;
  }
}

TEST(ModelDirectory, ARunThatBecomesAFolderAndARunAgainKeepsEveryBit) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  const ModelDirectory first = open_model(scratch / "run");
  write_hf_folder(scratch / "folder", first, {});
  const ModelDirectory second = open_model(scratch / "folder");
  write_run(scratch / "again", second, record_of(second, scratch / "folder"));
  const ModelDirectory third = open_model(scratch / "again");
  expect_same(*second.model, *first.model);
  expect_same(*third.model, *first.model);
  EXPECT_TRUE(second.bytes);
  EXPECT_TRUE(third.bytes);
  EXPECT_EQ(second.config.tokens.ends, std::vector<int64_t>{0});
  EXPECT_EQ(third.config.tokens.ends, std::vector<int64_t>{0});

  write_hf_folder(scratch / "folder2", third, {});
  for (const auto& entry : fs::directory_iterator(scratch / "folder")) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(content_of(scratch / ("folder2/" + name)), content_of(entry.path().string())) << name;
  }
}

TEST(ModelDirectory, AFolderOfTransformersBecomesARunAndAFolderAgain) {
  for (const char* golden : {"hf_gpt2", "hf_llama"}) {
    SCOPED_TRACE(golden);
    const HfFolder folder(golden);
    const ScratchDirectory scratch;
    const ModelDirectory first = open_model(folder.path());
    EXPECT_FALSE(first.bytes);  // it has no tokenizer
    write_run(scratch / "run", first, record_of(first, folder.path()));
    const ModelDirectory second = open_model(scratch / "run");
    expect_same(*second.model, *first.model);
    EXPECT_FALSE(second.bytes);
    write_hf_folder(scratch / "folder", second, {});
    expect_same(*open_model(scratch / "folder").model, *first.model);
    EXPECT_FALSE(fs::exists(scratch / "folder/tokenizer.json"));
    EXPECT_EQ(hf_config_json(open_model(scratch / "folder").config), hf_config_json(first.config));
  }
}

// As merge writes one: the record is that of the run whose adapter went into the weights.
TEST(ModelDirectory, ARunOfARunsWeightsKeepsItsStepItsEndsAndHowItSamples) {
  const HfFolder folder("hf_gpt2");
  folder.write("generation_config.json",
               R"({"eos_token_id":[5,9],"do_sample":false,"top_k":7,"temperature":0.5})");
  const ScratchDirectory scratch;
  const ModelDirectory first = open_model(folder.path());
  ModelDirectory source;
  {
    write_run(scratch / "run", first, record_of(first, folder.path()));
    source = open_model(scratch / "run");
    source.step = 3;
    write_run(scratch / "merged", source, *source.record);
  }
  const ModelDirectory merged = open_model(scratch / "merged");
  EXPECT_EQ(merged.step, 3);
  EXPECT_EQ(merged.generation, source.generation);
  EXPECT_EQ(merged.generation.tokens.ends, (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(merged.generation.do_sample, false);
  EXPECT_EQ(merged.generation.top_k, 7);
  expect_same(*merged.model, *first.model);
}

TEST(ModelDirectory, ARunOfAPresetsWeightsHasNoDefaultsOfSampling) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  const ModelDirectory source = open_model(scratch / "run");
  write_run(scratch / "merged", source, *source.record);
  EXPECT_FALSE(fs::exists(scratch / "merged/generation_config.json"));
  expect_same(*open_model(scratch / "merged").model, *source.model);
}

TEST(ModelDirectory, WhatCannotBeWrittenLeavesNothing) {
  const ScratchDirectory scratch;
  const HfFolder folder("hf_gpt2");
  const ModelDirectory source = open_model(folder.path());
  scratch.write("taken/file", "x");
  const std::string text =
      error_of<InvalidArgument>([&] { write_hf_folder(scratch / "taken", source, {}); });
  EXPECT_THAT(text, HasSubstr("is not empty"));
  {
    const FullDisk full(4096);
    EXPECT_THROW(write_hf_folder(scratch / "folder", source, {}), IoError);
    EXPECT_THROW(write_run(scratch / "run", source, record_of(source, "x")), IoError);
  }
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"taken", "taken/file"}));
}

// Else `convert` would copy any file of the user's into what they pass on.
TEST(ModelDirectory, NoFileIsReadThroughALinkThatLeavesTheFolder) {
  const ScratchDirectory elsewhere;
  const std::string target = elsewhere.write("secret", "{}");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "vocab.json", "merges.txt", "generation_config.json", "config.json"}) {
    SCOPED_TRACE(name);
    const HfFolder folder("hf_gpt2");
    if (name == std::string("config.json")) fs::rename(folder / name, target);
    fs::remove(folder / name);
    fs::create_symlink(target, folder / name);
    EXPECT_THAT(error_of<InvalidArgument>([&] { open_model(folder.path()); }),
                HasSubstr("is a link that leaves the folder"));
    const ScratchDirectory run;
    if (name == std::string("config.json")) continue;
    fs::create_symlink(target, run / name);
    EXPECT_THAT(error_of<InvalidArgument>([&] { kept_files(run.path()); }),
                HasSubstr("is a link that leaves the folder"));
  }
}

// MODEL/snapshots/REVISION holds links into MODEL/blobs.
TEST(ModelDirectory, TheTokenizerInTheCacheOfTheHubIsRead) {
  const ScratchDirectory cache;
  cache.write("blobs/1234", "of a blob");
  fs::create_directories(cache / "snapshots/main");
  fs::create_symlink("../../blobs/1234", cache / "snapshots/main/merges.txt");
  EXPECT_EQ(kept_files(cache / "snapshots/main").at("merges.txt"), "of a blob");
  cache.write("others/1234", "of another folder");
  fs::create_symlink("../../others/1234", cache / "snapshots/main/vocab.json");
  EXPECT_THROW(kept_files(cache / "snapshots/main"), InvalidArgument);
}

TEST(ModelDirectory, ADirectoryThatIsNeitherIsRefused) {
  const ScratchDirectory scratch;
  const auto refusal = [](const std::string& directory) {
    return error_of<InvalidArgument>([&] { open_model(directory); });
  };
  constexpr const char* kNeither = "' is neither a run nor a Hugging Face folder: ";
  EXPECT_THAT(refusal(scratch.path()), HasSubstr(kNeither + std::string("there is no config")));
  EXPECT_THAT(refusal(scratch / "nothing"), HasSubstr(kNeither + std::string("it is not there")));
  EXPECT_THAT(refusal(scratch.write("file", "")), HasSubstr(kNeither + std::string("it is a f")));
  for (const char* other : {R"({"hidden_size": 8})", "{}", "[]", "7"}) {
    scratch.write("config.json", other);
    EXPECT_THAT(refusal(scratch.path()), HasSubstr("its config.json has none of their keys"));
  }
  scratch.write("config.json", "{\"n_layer\": ");
  EXPECT_THAT(error_of<InvalidArgument>([&] { open_model(scratch.path()); }),
              HasSubstr("not JSON"));
}

TEST(ModelDirectory, ARunMadeOfWeightsCannotBeResumed) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  write_hf_folder(scratch / "folder", open_model(scratch / "run"), {});
  const ModelDirectory folder = open_model(scratch / "folder");
  write_run(scratch / "weights", folder, record_of(folder, "folder"));
  Trainer trainer(read_record(scratch / "weights").config.build(), words());
  EXPECT_THAT(error_of<InvalidArgument>([&] { load_latest(scratch / "weights", trainer); }),
              HasSubstr("without an optimizer"));
}

TEST(ModelOrigin, TrainingBeginsFromTheWeightsOfTheFolder) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  write_hf_folder(scratch / "folder", open_model(scratch / "run"), {});
  const ConfigBuilder keys = keys_of(read_hf_folder_config(scratch / "folder"), scratch / "folder");
  ModelOrigin origin = begin_from(scratch / "folder", keys);
  EXPECT_TRUE(origin.files.contains("tokenizer.json"));
  Trainer trainer(keys.build(), words(), std::move(origin.model));
  expect_same(trainer.model(), *open_model(scratch / "run").model);
}

TEST(ModelOrigin, AResumedRunHasTheNumbersOfOneThatNeverStopped) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  write_hf_folder(scratch / "folder", open_model(scratch / "run"), {});
  ConfigBuilder keys = keys_of(read_hf_folder_config(scratch / "folder"), "folder");
  keys.assign("dropout=0.2", "--set");
  const auto begin = [&](const std::string& directory, int64_t steps) {
    ModelOrigin origin = begin_from(scratch / "folder", keys);
    Trainer trainer(keys.build(), words(), std::move(origin.model));
    RunRecord record = make_record("folder", keys, {});
    record.architecture = origin.architecture;
    create_run(directory, record, trainer, origin.files);
    run(trainer, directory, {.steps = steps});
    return numbers_of(trainer, 2);
  };
  const std::vector<double> straight = begin(scratch / "straight", 4);
  begin(scratch / "stopped", 2);
  const RunRecord record = read_record(scratch / "stopped");
  ModelOrigin origin = origin_of(record, scratch / "stopped", 1);
  Trainer trainer(record.config.build(), words(), std::move(origin.model));
  load_latest(scratch / "stopped", trainer);
  run(trainer, scratch / "stopped", {.steps = 4});
  EXPECT_EQ(numbers_of(trainer, 2), straight);
}

TEST(ModelOrigin, SizesThatTheWeightsDoNotHaveAreRefused) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  write_hf_folder(scratch / "folder", open_model(scratch / "run"), {});
  const auto refusal = [&](const char* setting) {
    ConfigBuilder keys = keys_of(read_hf_folder_config(scratch / "folder"), "folder");
    keys.assign(setting, "--set");
    return error_of<InvalidArgument>([&] { begin_from(scratch / "folder", keys); });
  };
  EXPECT_THAT(refusal("num_layers=3"), HasSubstr("num_layers is 2 in the folder"));
  EXPECT_THAT(refusal("vocab_size=512"), HasSubstr("vocab_size is 256 in the folder"));
  EXPECT_THAT(refusal("seq_len=17"), HasSubstr("seq_len 17 is beyond the 16 positions"));
}

TEST(ModelOrigin, TheRotaryScalingOfAFolderIsInTheKeysAndCannotBeAnother) {
  const HfFolder folder("hf_llama");
  const HfConfig config = read_hf_folder_config(folder.path());
  const ConfigBuilder keys = keys_of(config, folder.path());
  const nn::RopeConfig expected = std::get<nn::LlamaConfig>(config.model).rope;
  const nn::RopeConfig rope = std::get<nn::LlamaConfig>(keys.build().model()).rope;
  EXPECT_EQ(rope.scaling, nn::RopeScaling::llama3);
  EXPECT_EQ(rope.theta, expected.theta);
  EXPECT_EQ(rope_frequencies(rope, 8, 64), rope_frequencies(expected, 8, 64));
  for (const char* setting : {"rope_theta=500", "rope_scaling=", "window=8"}) {
    ConfigBuilder other = keys;
    other.assign(setting, "--set");
    EXPECT_THAT(error_of<InvalidArgument>([&] { begin_from(folder.path(), other); }),
                HasSubstr("in the folder"))
        << setting;
  }
}

TEST(ModelDirectory, ARunWithRotaryScalingBecomesAFolderThatHasIt) {
  const ScratchDirectory scratch;
  ConfigBuilder config = ConfigBuilder::preset("llama-tiny");
  config.assign(R"(rope_scaling={"rope_type":"yarn","factor":4,)"
                R"("original_max_position_embeddings":8})",
                "--set");
  Trainer trainer(config.build(), words());
  create_run(scratch / "run", make_record("llama-tiny", config, {}), trainer, {});
  run(trainer, scratch / "run", {.steps = 1});
  const ModelDirectory first = open_model(scratch / "run");
  write_hf_folder(scratch / "folder", first, {});
  const Json written =
      Json::parse(content_of(scratch / "folder/config.json"), "config.json").at("rope_scaling");
  EXPECT_EQ(written.at("rope_type").text(), "yarn");
  EXPECT_EQ(written.at("original_max_position_embeddings").integer(), 8);
  const ModelDirectory second = open_model(scratch / "folder");
  const auto logits = [](const ModelDirectory& source) {
    const NoGrad off;
    return (*source.model)(tensor<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 9}), nn::Mask{});
  };
  EXPECT_TRUE(test::same_bits(logits(second), logits(first)));
  const Trainer resumed(read_record(scratch / "run").config.build(), words());
  EXPECT_EQ(resumed.config().rope_scaling, config.build().rope_scaling);
}

TEST(OpenTokenizer, AFolderWithoutATokenizerIsRefused) {
  const HfFolder folder("hf_gpt2");
  EXPECT_THAT(error_of<InvalidArgument>([&] { open_tokenizer(folder.path()); }),
              HasSubstr("no tokenizer.json"));
}

TEST(OpenTokenizer, AFolderHasItsOwnAndEndsDocumentsAsItsConfigurationSays) {
  const HfFolder folder("hf_gpt2");
  const std::string golden = std::string(std::getenv("FAULTLINE_SOURCE_DIR")) + "/tests/golden/";
  fs::copy_file(golden + "tokenizer_gpt2.json", folder / "tokenizer.json");
  folder.set("eos_token_id", 7);
  folder.set("vocab_size", 2000);
  const auto tokenizer = open_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->end_of_document(), 7);
  EXPECT_GT(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("In the beginning")), "In the beginning");
}

TEST(OpenTokenizer, ATokenizerThatDoesNotFitTheModelIsRefusedByFileAndKey) {
  const HfFolder folder("hf_gpt2");
  const std::string golden = std::string(std::getenv("FAULTLINE_SOURCE_DIR")) + "/tests/golden/";
  fs::copy_file(golden + "tokenizer_gpt2.json", folder / "tokenizer.json");
  const auto refusal = [&] {
    return error_of<InvalidArgument>([&] { open_tokenizer(folder.path()); });
  };
  const std::string larger = refusal();  // than the 48 ids of the model
  EXPECT_THAT(larger, HasSubstr(folder / "tokenizer.json"));
  EXPECT_THAT(larger, HasSubstr(folder / "config.json: vocab_size is 48"));

  folder.set("vocab_size", 2000);
  folder.set("eos_token_id", Json::array().push(7).push(1999));
  EXPECT_THAT(refusal(), HasSubstr(folder / "config.json: eos_token_id is 1999"));
  folder.set("eos_token_id", 7);
  folder.write("generation_config.json", R"({"eos_token_id":[7,1998]})");
  EXPECT_THAT(refusal(), HasSubstr(folder / "generation_config.json: eos_token_id is 1998"));
  folder.write("generation_config.json", R"({"eos_token_id":[7,1]})");
  EXPECT_EQ(open_tokenizer(folder.path())->end_of_document(), 7);
}

// GenerationConfig of transformers: do_sample is false and top_k is 50 where a file has none.
TEST(ModelDirectory, AFolderSamplesOnlyWhereItSaysSo) {
  const HfFolder folder("hf_gpt2");
  const auto read = [&](const char* text) {
    folder.write("generation_config.json", text);
    return open_model(folder.path()).generation;
  };
  EXPECT_EQ(read("{}").do_sample, false);
  EXPECT_EQ(read(R"({"temperature":0.7,"top_k":5})").do_sample, false);
  EXPECT_EQ(read(R"({"do_sample":true})").top_k, 50);
  EXPECT_EQ(read(R"({"do_sample":true,"top_k":0})").top_k, 0);
  folder.remove("generation_config.json");
  EXPECT_EQ(open_model(folder.path()).generation.do_sample, false);

  // What is made of it goes on so; a run from a preset samples, and so does its folder.
  const ScratchDirectory scratch;
  const ModelDirectory source = open_model(folder.path());
  write_run(scratch / "of-folder", source, record_of(source, "folder"));
  EXPECT_EQ(open_model(scratch / "of-folder").generation.do_sample, false);
  make_run(scratch / "run");
  EXPECT_EQ(open_model(scratch / "run").generation.do_sample, std::nullopt);
  write_hf_folder(scratch / "of-run", open_model(scratch / "run"), {});
  EXPECT_EQ(open_model(scratch / "of-run").generation.do_sample, true);
  EXPECT_EQ(open_model(scratch / "of-run").generation.top_k, 0);
}

TEST(OpenTokenizer, ARunFromAPresetReadsBytesAndSoDoesTheFolderThatItBecomes) {
  const ScratchDirectory scratch;
  make_run(scratch / "run");
  write_hf_folder(scratch / "folder", open_model(scratch / "run"), {});
  for (const char* name : {"run", "folder"}) {
    const auto tokenizer = open_tokenizer(scratch / name);
    EXPECT_EQ(tokenizer->encode("ab"), (std::vector<int32_t>{'a', 'b'})) << name;
    EXPECT_EQ(tokenizer->end_of_document(), ByteTokenizer::kEndOfDocument) << name;
  }
}

}  // namespace
}  // namespace faultline::train
