#include "train/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "data/utf8.h"
#include "io/checkpoint.h"
#include "io/finite.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "nn/name_pattern.h"
#include "train/run.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

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

// Adds one adapter under `name`; returns the notes about it.
std::vector<std::string> load_adapter(nn::LanguageModel& model, const std::string& name,
                                      const std::string& adapter, const std::string& directory,
                                      const std::vector<std::string>& names) {
  const PeftConfig config = load_peft(model, name, adapter, model.dropout_key());
  std::vector<std::string> notes;
  const std::string file = adapter + "/adapter_config.json";
  if (!config.unknown.empty()) {
    notes.push_back(
        fmt::format("{}: keys that are not known here: {}", file, fmt::join(config.unknown, ", ")));
  }
  const std::string& base = config.base.name;
  if (base.empty() || !config.base.checksum.empty() || may_name(base, directory)) return notes;
  const bool known = std::any_of(names.begin(), names.end(), [&](const std::string& own) {
    return !own.empty() && may_name(base, own);
  });
  if (!known) {
    notes.push_back(
        fmt::format("{}: base_model_name_or_path is '{}', and the model is '{}'; shapes "
                    "alone do not show whether they are the same",
                    file, base, directory));
  }
  return notes;
}

}  // namespace

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

std::vector<std::string> add_adapters(nn::LanguageModel& model,
                                      const std::vector<std::string>& adapters,
                                      const std::string& directory,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < adapters.size(); ++i) {
    require(!adapters[i].empty(), "lora: the name of an adapter's directory is empty");
    for (size_t other = 0; other < i; ++other) {
      std::error_code none;
      require(!fs::equivalent(adapters[i], adapters[other], none),
              "lora: the adapter '{}' is named twice, and would count double; name it once",
              adapters[i]);
    }
    const std::string name = i == 0 ? kRunAdapter : fmt::format("adapter-{}", i + 1);
    for (std::string& note : load_adapter(model, name, adapters[i], directory, names)) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

LoadedRun load_run(nn::LanguageModel& model, const Config& config, const std::string& directory,
                   const std::vector<std::string>& adapters) {
  const Checkpoint checkpoint = latest(directory);
  if (config.lora.empty()) {
    model.load(weights_of(checkpoint, directory));
  } else {
    load_saved_base(directory, model);
    check_finite(nn::base_state(model), base_path(directory), "");
  }
  LoadedRun loaded{checkpoint.step, {}};
  if (!adapters.empty()) {
    loaded.notes = add_adapters(model, adapters, directory, {read_record(directory).model});
  } else if (!config.lora.empty()) {
    add_run_adapter(model, config);
    load_trained(model, config, weights_of(checkpoint, directory));
  }
  return loaded;
}

}  // namespace faultline::train
