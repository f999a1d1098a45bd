#include "train/lora.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "nn/name_pattern.h"
#include "train/run.h"

namespace faultline::train {
namespace {

// A rank above a layer's smaller side trains more numbers than the layer itself has; a pattern that
// matches nothing is a misspelt name.
void check_run_adapter(nn::LanguageModel& model, const nn::LoraConfig& lora) {
  std::vector<std::string> names;
  for (const nn::LoraLayer& item : nn::lora_layers(model, lora, peft_layer_name)) {
    const Shape& weight = item.layer->weight().value().shape();
    const int64_t most = std::min(weight[0], weight[1]);
    require(
        item.shape.rank <= most,
        "lora: rank {} (r or rank_pattern) is above {}, the smaller side of {} [{}, {}]; choose "
        "at most that, for this layer alone with rank_pattern={}:{}",
        item.shape.rank, most, item.name, weight[0], weight[1],
        item.name.substr(item.name.rfind('.') + 1), most);
    names.push_back(item.name);
  }
  const auto check = [&](const char* key, const std::string& pattern) {
    const nn::NamePattern end = nn::NamePattern::end(pattern);
    require(std::any_of(names.begin(), names.end(),
                        [&](const std::string& name) { return end.matches(name); }),
            "lora: {} '{}' matches the end of no layer that gets an adapter; the first is {}", key,
            pattern, names.front());
  };
  for (const auto& [pattern, rank] : lora.rank_pattern) check("rank_pattern", pattern);
  for (const auto& [pattern, alpha] : lora.alpha_pattern) check("alpha_pattern", pattern);
}

}  // namespace

void add_run_adapter(nn::LanguageModel& model, const Config& config) {
  if (config.lora.empty()) return;
  const nn::LoraConfig lora = lora_from_text(config.lora);
  check_run_adapter(model, lora);
  nn::add_lora(model, kRunAdapter, lora, model.dropout_key(), config.seed, peft_layer_name);
  nn::check_trainable(model);
}

State trained_state(nn::LanguageModel& model, const Config& config) {
  return config.lora.empty() ? model.state() : nn::adapter_state(model);
}

void load_trained(nn::LanguageModel& model, const Config& config, const State& state) {
  if (config.lora.empty()) {
    model.load(state);
  } else {
    nn::load_adapters(model, state);
  }
}

namespace {

Checkpoint latest(const std::string& directory) {
  const auto path = latest_checkpoint(directory);
  require(path.has_value(), "'{}' has no checkpoint; train it first", directory);
  return load_checkpoint(*path);
}

std::string base_path(const std::string& directory) { return directory + "/base.safetensors"; }

}  // namespace

State read_base(const std::string& directory) {
  require(read_record(directory).config.build().lora.empty(),
          "lora: '{}' trains an adapter itself; merge it first: faultline merge {} --out DIR",
          directory, directory);
  return latest(directory).state.part("model");
}

void save_base(const std::string& directory, Trainer& trainer) {
  if (trainer.config().lora.empty()) return;
  write_safetensors(base_path(directory), nn::base_state(trainer.model()).tensors);
}

void save_adapter(const std::string& directory, Trainer& trainer) {
  if (trainer.config().lora.empty()) return;
  save_peft(trainer.model(), kRunAdapter, lora_from_text(trainer.config().lora), "",
            directory + "/adapter");
}

void load_saved_base(const std::string& directory, nn::LanguageModel& model) {
  State base;
  base.tensors = read_safetensors(base_path(directory)).tensors;
  nn::load_base(model, base);
}

std::vector<std::string> add_adapters(nn::LanguageModel& model,
                                      const std::vector<std::string>& directories) {
  std::vector<std::string> unknown;
  for (size_t i = 0; i < directories.size(); ++i) {
    require(!directories[i].empty(), "lora: the name of an adapter's directory is empty");
    for (size_t other = 0; other < i; ++other) {
      std::error_code none;
      require(!std::filesystem::equivalent(directories[i], directories[other], none),
              "lora: the adapter '{}' is named twice, and would count double; name it once",
              directories[i]);
    }
    const std::string name = i == 0 ? kRunAdapter : fmt::format("adapter-{}", i + 1);
    for (const std::string& key :
         load_peft(model, name, directories[i], model.dropout_key()).unknown) {
      if (std::find(unknown.begin(), unknown.end(), key) == unknown.end()) unknown.push_back(key);
    }
  }
  return unknown;
}

LoadedRun load_run(nn::LanguageModel& model, const Config& config, const std::string& directory,
                   const std::vector<std::string>& adapters) {
  const Checkpoint checkpoint = latest(directory);
  if (!config.lora.empty()) load_saved_base(directory, model);
  if (config.lora.empty()) model.load(checkpoint.state.part("model"));
  LoadedRun loaded{checkpoint.step, {}};
  if (!adapters.empty()) {
    loaded.ignored = add_adapters(model, adapters);
  } else if (!config.lora.empty()) {
    add_run_adapter(model, config);
    load_trained(model, config, checkpoint.state.part("model"));
  }
  return loaded;
}

}  // namespace faultline::train
