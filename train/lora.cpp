#include "train/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "data/utf8.h"
#include "io/checkpoint.h"
#include "io/finite.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "train/run.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

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

void check_finite(const State& state, const std::string& file, const std::string& prefix) {
  for (const auto& [name, tensor] : state.tensors) require_finite(tensor, file, prefix + name);
}

// The weights in a checkpoint of the run in `directory`, all of them finite.
State weights_of(const Checkpoint& checkpoint, const std::string& directory) {
  State weights = checkpoint.state.part("model");
  check_finite(weights, *latest_checkpoint(directory) + "/state.safetensors", "model.");
  return weights;
}

// Metadata of base.safetensors.
constexpr const char* kBaseName = "base";
constexpr const char* kBaseChecksum = "base_xxh64";

// The absolute path of a folder or a run, "" for what is none, and for one that JSON cannot hold.
std::string place_of(const std::string& model) {
  std::error_code none;
  const bool place = fs::is_directory(model + "/checkpoints", none) || is_hf_folder(model);
  if (!place) return "";
  const fs::path path = fs::absolute(model, none).lexically_normal();
  const std::string text = (path.has_filename() ? path : path.parent_path()).string();
  return repair_utf8(text).replaced == 0 ? text : "";
}

// Whether `base`, a path or a name of the Hub, can be the model that lies at `place`.
bool may_name(const std::string& base, const std::string& place) {
  std::error_code none;
  if (base == place || fs::equivalent(base, place, none)) return true;
  const fs::path own = fs::absolute(place, none).lexically_normal();
  const fs::path last = own.has_filename() ? own.filename() : own.parent_path().filename();
  if (fs::path(base).filename() == last) return true;
  // In the Hub's cache ORGANISATION/NAME is models--ORGANISATION--NAME/snapshots/REVISION.
  std::string cached = "models--" + base;
  for (size_t at = 0; (at = cached.find('/', at)) != std::string::npos;)
    cached.replace(at, 1, "--");
  return std::find(own.begin(), own.end(), fs::path(cached)) != own.end();
}

}  // namespace

std::vector<std::string> load_adapter(nn::LanguageModel& model, const std::string& adapter,
                                      const std::string& directory,
                                      const std::vector<std::string>& names) {
  const PeftConfig config = load_peft(model, kRunAdapter, adapter, model.dropout_key());
  std::vector<std::string> notes;
  const std::string file = adapter + "/adapter_config.json";
  if (!config.unknown.empty()) {
    notes.push_back(
        fmt::format("{}: keys that are not known here: {}", file, fmt::join(config.unknown, ", ")));
  }
  const std::string& base = config.base.name;
  if (base.empty() || !config.base.checksum.empty() || may_name(base, directory)) return notes;
  const bool known = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return !name.empty() && may_name(base, name);
  });
  if (!known) {
    notes.push_back(
        fmt::format("{}: base_model_name_or_path is '{}', and the model is '{}'; shapes "
                    "alone do not show whether they are the same",
                    file, base, directory));
  }
  return notes;
}

State read_base(const std::string& directory) {
  require(read_record(directory).config.build().lora.empty(),
          "lora: '{}' trains an adapter itself; merge it first: faultline merge {} --out DIR",
          directory, directory);
  return weights_of(latest(directory), directory);
}

void save_base(const std::string& directory, Trainer& trainer, const std::string& model) {
  if (trainer.config().lora.empty()) return;
  write_safetensors(
      base_path(directory), nn::base_state(trainer.model()).tensors,
      {{kBaseName, place_of(model)}, {kBaseChecksum, base_checksum(trainer.model())}});
}

void save_adapter(const std::string& directory, Trainer& trainer) {
  if (trainer.config().lora.empty()) return;
  const auto about = read_safetensors(base_path(directory)).metadata;
  PeftBase base;
  if (const auto name = about.find(kBaseName); name != about.end()) base.name = name->second;
  const auto checksum = about.find(kBaseChecksum);
  base.checksum = checksum != about.end() ? checksum->second : base_checksum(trainer.model());
  save_peft(trainer.model(), kRunAdapter, lora_from_text(trainer.config().lora), base,
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
  if (config.lora.empty()) {
    model.load(weights_of(checkpoint, directory));
  } else {
    load_saved_base(directory, model);
    check_finite(nn::base_state(model), base_path(directory), "");
  }
  LoadedRun loaded{checkpoint.step, {}};
  if (!adapter.empty()) {
    loaded.notes = load_adapter(model, adapter, directory, {read_record(directory).model});
  } else if (!config.lora.empty()) {
    add_run_adapter(model, config);
    load_trained(model, config, weights_of(checkpoint, directory));
  }
  return loaded;
}

}  // namespace faultline::train
