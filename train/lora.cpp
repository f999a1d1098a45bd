#include "train/lora.h"

#include <charconv>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "train/run.h"

namespace faultline::train {
namespace {

const std::vector<std::string> kLoraKeys = {"r", "alpha", "targets", "dropout", "rslora", "regex"};

template <class T>
T number(const std::string& key, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  require(result.ec == std::errc{} && result.ptr == end, "lora: {} takes a number, got '{}'", key,
          text);
  return value;
}

std::vector<std::string> parts(const std::string& text, char between) {
  std::vector<std::string> result;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(between, begin);
    result.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return result;
}

void set(nn::LoraConfig& config, const std::string& key, const std::string& value) {
  using Kind = nn::LoraTargets::Kind;
  if (key == "r") {
    config.rank = number<int64_t>(key, value);
  } else if (key == "alpha") {
    config.alpha = number<double>(key, value);
  } else if (key == "dropout") {
    config.dropout = number<double>(key, value);
  } else if (key == "rslora") {
    require(value == "true" || value == "false", "lora: rslora takes true or false, got '{}'",
            value);
    config.scaling = value == "true" ? nn::LoraScaling::by_root_of_rank : nn::LoraScaling::by_rank;
  } else if (key == "regex") {
    config.targets = {Kind::expression, {value}};
  } else if (key == "targets") {
    config.targets = {Kind::suffixes, parts(value, '+')};
    if (value == "all-linear") config.targets = {};
  } else {
    fail("lora: there is no key '{}'; {}", key, suggestion(key, kLoraKeys));
  }
}

}  // namespace

nn::LoraConfig lora_from_text(const std::string& text) {
  nn::LoraConfig config;
  std::string left = text;
  while (!left.empty()) {
    const size_t equals = left.find('=');
    require(equals != std::string::npos, "lora: expected r=8,alpha=16, got '{}'", text);
    const std::string key = left.substr(0, equals);
    left.erase(0, equals + 1);
    const size_t end = key == "regex" ? std::string::npos : left.find(',');
    set(config, key, left.substr(0, end));
    left = end == std::string::npos ? "" : left.substr(end + 1);
    require(end == std::string::npos || !left.empty(), "lora: '{}' ends in a comma", text);
  }
  config.check();
  return config;
}

void add_run_adapter(nn::LanguageModel& model, const Config& config) {
  if (config.lora.empty()) return;
  nn::add_lora(model, kRunAdapter, lora_from_text(config.lora), model.dropout_key(), config.seed,
               peft_layer_name);
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

LoadedRun load_run(nn::LanguageModel& model, const Config& config, const std::string& directory,
                   const std::string& adapter) {
  const Checkpoint checkpoint = latest(directory);
  if (!config.lora.empty()) load_saved_base(directory, model);
  if (config.lora.empty()) model.load(checkpoint.state.part("model"));
  LoadedRun loaded{checkpoint.step, {}};
  if (!adapter.empty()) {
    loaded.ignored = load_peft(model, kRunAdapter, adapter, model.dropout_key()).unknown;
  } else if (!config.lora.empty()) {
    add_run_adapter(model, config);
    load_trained(model, config, checkpoint.state.part("model"));
  }
  return loaded;
}

}  // namespace faultline::train
