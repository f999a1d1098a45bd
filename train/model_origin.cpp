#include "train/model_origin.h"

#include <algorithm>
#include <filesystem>

#include "io/hf_config_parts.h"
#include "io/hf_model.h"
#include "io/mapped_file.h"
#include "train/model_directory.h"

namespace faultline::train {
namespace {

constexpr int64_t kMostPositions = 1024;

int64_t positions(const HfConfig& folder) {
  return std::visit([](const auto& model) { return model.seq_len; }, folder.model);
}

int64_t key_heads(const nn::Gpt2Config& model) { return model.num_heads; }
int64_t key_heads(const nn::LlamaConfig& model) { return model.num_key_value_heads; }

// The sizes that weights have, and a run cannot choose.
std::vector<std::pair<const char*, int64_t>> sizes(const HfConfig& folder) {
  return std::visit(
      [](const auto& model) {
        std::vector<std::pair<const char*, int64_t>> sizes{
            {"num_layers", model.num_layers},
            {"num_heads", model.num_heads},
            {"num_key_value_heads", key_heads(model)},
            {"hidden_size", model.hidden_size},
            {"vocab_size", model.vocab_size}};
        if constexpr (std::is_same_v<std::decay_t<decltype(model)>, nn::LlamaConfig>) {
          sizes.emplace_back("head_size", model.head_size);
          sizes.emplace_back("intermediate_size", model.intermediate_size);
        }
        return sizes;
      },
      folder.model);
}

std::string shown(const std::string& value) { return value.empty() ? "none" : value; }

// What the folder decides, a run cannot set to anything else.
void check_keys(const std::string& folder, const HfConfig& config, const ConfigBuilder& keys) {
  const ConfigBuilder own = keys_of(config, folder);
  std::vector<const char*> fixed{"family", "rope_theta", "rope_scaling", "window"};
  for (const auto& [key, size] : sizes(config)) fixed.push_back(key);
  for (const char* key : fixed) {
    require(keys.value(key) == own.value(key), "train: {} is {} in the folder {}, it cannot be {}",
            key, shown(own.value(key)), folder, shown(keys.value(key)));
  }
  const int64_t length = keys.build().seq_len;
  require(length <= positions(config), "train: seq_len {} is beyond the {} positions of {}", length,
          positions(config), folder);
}

// The model with the run's dropout in place of the folder's.
std::unique_ptr<nn::LanguageModel> with_dropout(ModelDirectory& folder, double dropout,
                                                uint64_t seed) {
  const double own =
      std::visit([](const auto& model) { return model.dropout; }, folder.config.model);
  if (dropout == own) return std::move(folder.model);
  std::visit([&](auto& model) { model.dropout = dropout; }, folder.config.model);
  std::unique_ptr<nn::LanguageModel> model = make_hf_model(folder.config, seed);
  model->load(folder.model->state());
  return model;
}

}  // namespace

ConfigBuilder keys_of(const HfConfig& folder, const std::string& source) {
  ConfigBuilder keys = ConfigBuilder::defaults();
  const bool is_gpt2 = std::holds_alternative<nn::Gpt2Config>(folder.model);
  keys.set("family", is_gpt2 ? "gpt2" : "llama", source);
  if (!is_gpt2) {
    const nn::RopeConfig& rope = std::get<nn::LlamaConfig>(folder.model).rope;
    keys.set_json("rope_theta", rope.theta, source);
    if (rope.scaling != nn::RopeScaling::none) {
      keys.set_json("rope_scaling", rope_scaling_json(rope), source);
    }
  }
  for (const auto& [key, size] : sizes(folder)) keys.set(key, std::to_string(size), source);
  keys.set("seq_len", std::to_string(std::min(positions(folder), kMostPositions)), source);
  std::visit(
      [&](const auto& model) {
        keys.set_json("dropout", model.dropout, source);
        keys.set_json("init_std", model.init_std, source);
      },
      folder.model);
  return keys;
}

ModelOrigin begin_from(const std::string& folder, const ConfigBuilder& keys) {
  check_keys(folder, read_hf_folder_config(folder), keys);
  const Config config = keys.build();
  ModelDirectory opened = open_model(folder);
  ModelOrigin origin;
  origin.model = with_dropout(opened, config.dropout, config.seed);
  origin.model->set_training(true);
  opened.config.dtype = DType::f32;
  origin.architecture = hf_config_json(opened.config);
  origin.files = kept_files(opened);
  return origin;
}

ModelOrigin origin_of(const RunRecord& record, const std::string& directory, uint64_t seed) {
  ModelOrigin origin;
  if (record.architecture.is(Json::Kind::null)) return origin;
  HfConfig config = read_hf_config(record.architecture, directory + "/config.json: architecture");
  // The last to say what the dropout is are the run's keys.
  std::visit([&](auto& model) { model.dropout = record.config.build().dropout; }, config.model);
  check_hf_memory(config, directory + "/config.json");
  origin.model = make_hf_model(config, seed);
  origin.architecture = record.architecture;
  origin.files = kept_files(directory);
  return origin;
}

}  // namespace faultline::train
