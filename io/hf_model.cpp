#include "io/hf_model.h"

#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/folder_file.h"
#include "io/hf_tensors.h"
#include "io/hf_weights.h"
#include "io/mapped_file.h"

namespace faultline {
namespace {

std::string config_path(const std::string& folder) { return folder + "/config.json"; }

Json read_json(const std::string& path) { return Json::parse(map_file(path).text(), path); }

}  // namespace

bool is_hf_folder(const std::string& folder) {
  const std::string path = config_path(folder);
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  try {
    return is_hf_config(read_json(path));
  } catch (const InvalidArgument&) {
    return false;
  }
}

HfConfig read_hf_folder_config(const std::string& folder) {
  const std::string path = config_path(folder);
  std::error_code none;
  require(std::filesystem::is_regular_file(path, none),
          "{}: there is no config.json in the folder; a model folder has one", folder);
  HfConfig config = read_hf_config(read_json(path_inside(folder, "config.json")), path);
  check_hf_memory(config, path);
  return config;
}

void check_hf_memory(const HfConfig& config, const std::string& source) {
  const double bytes = sizeof(float) * hf_parameter_count(config);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  require(bytes <= memory,
          "{}: a model of {:.3g} parameters takes at least {:.3g} GB, this machine has {:.3g} GB",
          source, hf_parameter_count(config), bytes / 1e9, memory / 1e9);
}

std::unique_ptr<nn::LanguageModel> make_hf_model(const HfConfig& config, uint64_t seed) {
  return nn::make_model(config.model, seed, nn::Start::zeros);
}

HfModel load_hf_model(const std::string& folder, uint64_t seed) {
  HfModel result;
  result.config = read_hf_folder_config(folder);
  const State state = model_state(result.config, read_hf_weights(folder), folder);
  result.model = make_hf_model(result.config, seed);
  result.model->load(state);
  return result;
}

void save_hf_model(const std::string& folder, HfConfig config, const GenerationConfig& generation,
                   const State& state, const HfSaveOptions& options) {
  require(options.shard_bytes > 0, "model: a shard of {} bytes holds nothing", options.shard_bytes);
  config.dtype = DType::f32;
  write_file_atomically(config_path(folder), hf_config_json(config).to_indented_text());
  write_file_atomically(folder + "/generation_config.json",
                        generation_config_json(generation).to_indented_text());
  write_hf_weights(folder, hf_tensors(config, state), options.shard_bytes, options.between);
}

}  // namespace faultline
