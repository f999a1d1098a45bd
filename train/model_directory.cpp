#include "train/model_directory.h"

#include <filesystem>

#include "io/atomic_file.h"
#include "io/byte_tokenizer_file.h"
#include "io/checkpoint.h"
#include "io/folder_file.h"
#include "io/mapped_file.h"
#include "train/lora.h"
#include "train/model_origin.h"

namespace faultline::train {
namespace {

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kTokenizerFiles[] = {kTokenizer, "tokenizer_config.json",
                                           "special_tokens_map.json", "vocab.json", "merges.txt"};

std::map<std::string, std::string> read_tokenizer_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const char* name : kTokenizerFiles) {
    const std::string path = path_inside(directory, name);
    if (!std::filesystem::exists(path)) continue;
    const MappedFile file = map_file(path);
    // Nothing that is not what its name says is passed on.
    if (path.ends_with(".json")) Json::parse(file.text(), path);
    files.emplace(name, file.text());
  }
  return files;
}

// A run of ours, whose ids are bytes and whose documents end with byte 0.
SpecialTokens byte_tokens() { return {.begin = {}, .ends = {0}, .padding = {}}; }

ModelDirectory open_run(const std::string& directory, const std::vector<std::string>& adapters) {
  ModelDirectory result;
  result.record = read_record(directory);
  const Config config = result.record->config.build();
  const Json& architecture = result.record->architecture;
  if (architecture.is(Json::Kind::null)) {
    check_memory_to_generate(config);
    result.config = {config.model(), byte_tokens(), DType::f32};
    result.bytes = true;
  } else {
    result.config = read_hf_config(architecture, directory + "/config.json: architecture");
    check_hf_memory(result.config, directory + "/config.json");
  }
  result.model = make_hf_model(result.config, config.seed);
  LoadedRun loaded = load_run(*result.model, config, directory, adapters);
  result.step = loaded.step;
  result.notes = std::move(loaded.notes);
  return result;
}

ModelDirectory open_folder(const std::string& directory, const std::vector<std::string>& adapters) {
  HfModel loaded = load_hf_model(directory);
  ModelDirectory result;
  result.config = std::move(loaded.config);
  result.model = std::move(loaded.model);
  result.notes = add_adapters(*result.model, adapters, directory);
  return result;
}

// The defaults of transformers, written out: what is made of the folder, such as a run, whose own
// defaults are others, then goes on as the folder does.
void fill_in_sampling(GenerationConfig& config) {
  constexpr int64_t kTopK = 50;
  if (!config.do_sample) config.do_sample = false;
  if (*config.do_sample && !config.top_k) config.top_k = kTopK;
}

}  // namespace

void check_is_model(const std::string& directory) {
  if (is_hf_folder(directory)) return;
  constexpr const char* kNeeds =
      "a run, as `faultline train --out` writes it, has a config.json with \"format\", a folder one "
      "with \"model_type\" or \"architectures\"";
  const auto expect = [&](bool condition, std::string_view what) {
    require(condition, "'{}' is neither a run nor a Hugging Face folder: {}; {}", directory, what,
            kNeeds);
  };
  std::error_code none;
  expect(std::filesystem::exists(directory, none), "it is not there");
  expect(std::filesystem::is_directory(directory, none), "it is a file");
  const std::string path = directory + "/config.json";
  expect(std::filesystem::is_regular_file(path, none), "there is no config.json in it");
  const Json json = Json::parse(map_file(path).text(), path);
  const bool object = json.is(Json::Kind::object);
  expect(object && json.find("format") != nullptr, "its config.json has none of their keys");
}

std::map<std::string, std::string> kept_files(const ModelDirectory& folder) {
  std::map<std::string, std::string> files = folder.tokenizer_files;
  // A run that began from a preset has no such file, and none is made up for it.
  const bool has_defaults = !folder.record || !(folder.generation == GenerationConfig{});
  if (has_defaults) {
    files[kGeneration] = generation_config_json(folder.generation).to_indented_text();
  }
  return files;
}

std::map<std::string, std::string> kept_files(const std::string& directory) {
  std::map<std::string, std::string> files = read_tokenizer_files(directory);
  files[kGeneration] =
      generation_config_json(read_generation_config(directory, 0)).to_indented_text();
  return files;
}

ModelDirectory open_model(const std::string& directory, const std::vector<std::string>& adapters) {
  const bool folder = is_hf_folder(directory);
  check_is_model(directory);
  ModelDirectory result = folder ? open_folder(directory, adapters) : open_run(directory, adapters);
  result.model->set_training(false);
  result.generation = read_generation_config(directory, result.config.vocab_size());
  if (folder) fill_in_sampling(result.generation);
  result.tokenizer_files = read_tokenizer_files(directory);
  if (result.tokenizer_files.contains(kTokenizer)) {
    result.bytes = is_byte_tokenizer(directory + "/" + kTokenizer);
  }
  return result;
}

void write_hf_folder(const std::string& target, const ModelDirectory& source,
                     const HfSaveOptions& options) {
  check_free("write_hf_folder: the target", target);
  AtomicDirectory made(target);
  const std::string& place = made.temporary_path();
  GenerationConfig generation = source.generation;
  if (generation.tokens == SpecialTokens{}) {
    generation.tokens = source.config.tokens;
    // So that transformers does not have to choose one; no weight depends on it.
    if (source.bytes) generation.tokens.padding = 0;
  }
  if (source.record && !generation.do_sample) {
    generation.do_sample = true;
    if (!generation.top_k) generation.top_k = 0;
  }
  std::map<std::string, std::string> files = source.tokenizer_files;
  if (files.empty() && source.bytes) {
    files[kTokenizer] = byte_tokenizer_json();
    files["tokenizer_config.json"] =
        byte_tokenizer_config_json(source.model->model_shape().seq_len);
  }
  for (const auto& [name, content] : files) write_file_atomically(place + "/" + name, content);
  save_hf_model(place, source.config, generation, source.model->state(), options);
  made.commit_new();
}

RunRecord record_of(const ModelDirectory& folder, const std::string& name) {
  RunRecord record = make_record(name, keys_of(folder.config, name), {});
  HfConfig config = folder.config;
  config.dtype = DType::f32;
  record.architecture = hf_config_json(config);
  return record;
}

void write_run(const std::string& target, const ModelDirectory& source, const RunRecord& record,
               const BetweenTensors& between) {
  check_free("write_run: the target", target);
  AtomicDirectory made(target);
  const std::string& place = made.temporary_path();
  write_record(place, record);
  for (const auto& [file, content] : kept_files(source)) {
    write_file_atomically(place + "/" + file, content);
  }
  State state;
  state.add("model", source.model->state());
  save_checkpoint(place, source.step, state, between);
  made.commit_new();
}

}  // namespace faultline::train
