#include "io/peft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "autograd/functional.h"
#include "core/error.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/file_bytes.h"
#include "io/finite.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "base_model.model.";
constexpr const char* kFactors[] = {"lora_A", "lora_B"};
constexpr const char* kBaseChecksum = "base_xxh64";

std::string tensor_name(const std::string& layer, const char* factor) {
  return fmt::format("{}{}.{}.weight", kModel, layer, factor);
}

// Where an adapter's name stands between, as in "...lora_A.default.weight", it is left out.
std::string without_adapter_name(const std::string& name) {
  for (const char* factor : kFactors) {
    const std::string inner = fmt::format(".{}.", factor);
    const size_t at = name.rfind(inner);
    if (at == std::string::npos || !name.ends_with(".weight")) continue;
    return name.substr(0, at + inner.size()) + "weight";
  }
  return name;
}

std::string tensors_path(const std::string& directory) {
  const std::string path = directory + "/adapter_model.safetensors";
  require(fs::exists(path) || !fs::exists(directory + "/adapter_model.bin"),
          "{}/adapter_model.bin is a pickle, which can run any code when it is opened; save the "
          "adapter as adapter_model.safetensors (save_pretrained does by default)",
          directory);
  return path;
}

std::map<std::string, Tensor> factors_of(const Safetensors& file, const std::string& path) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : file.tensors) {
    require(name.find(".lora_embedding_") == std::string::npos,
            "{}: {} adapts an embedding; only linear layers are known here", path, name);
    require(is_floating(tensor.dtype()), "{}: {} is {}, expected floats", path, name, tensor);
    require(tensors.emplace(without_adapter_name(name), tensor).second,
            "{}: {} is there for two adapters; save them one by one", path, name);
    require_finite(tensor, path, name);
  }
  return tensors;
}

// Drops the listed layers that this model lacks, as PEFT does: a list often serves several models.
void drop_unknown_targets(nn::Module& model, nn::LoraConfig& config) {
  if (config.targets.kind != nn::LoraTargets::Kind::suffixes) return;
  std::vector<std::string> names;
  model.visit([&](nn::Module& module) {
    if (dynamic_cast<nn::Linear*>(&module) != nullptr) {
      names.push_back(peft_layer_name(module.path()));
    }
  });
  std::erase_if(config.targets.texts, [&](const std::string& suffix) {
    return std::none_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == suffix || name.ends_with("." + suffix);
    });
  });
}

// The layers that the configuration chooses in this model. What is wrong with an expression is told
// with the key that holds it.
std::vector<nn::LoraLayer> chosen_layers(nn::Module& model, const nn::LoraConfig& config,
                                         const std::string& directory) {
  const auto choose = [&](const nn::LoraConfig& by, const char* key) {
    try {
      return nn::lora_layers(model, by, peft_layer_name);
    } catch (const InvalidArgument& error) {
      fail("{}/adapter_config.json: {}: {}", directory, key, error.what());
    }
  };
  nn::LoraConfig targets = config;
  targets.rank_pattern.clear();
  targets.alpha_pattern.clear();
  choose(targets, "target_modules");
  targets.rank_pattern = config.rank_pattern;
  choose(targets, "rank_pattern");
  return choose(config, "alpha_pattern");
}

// Refuses an adapter that was trained over other weights than the model's.
void check_base(nn::Module& model, const PeftBase& base, const std::string& path) {
  if (base.checksum.empty()) return;
  const std::string own = base_checksum(model);
  const std::string where = base.name.empty() ? "" : fmt::format(" ('{}')", base.name);
  require(base.checksum == own,
          "{}: the adapter was trained over other weights{}: their checksum is {}, that of this "
          "model is {}; give it the base that it was trained over",
          path, where, base.checksum, own);
}

// The layers of this model that the adapter has, each with tensors of its shape.
std::vector<nn::LoraLayer> fitting_layers(nn::Module& model, const nn::LoraConfig& config,
                                          const std::string& directory, const std::string& path,
                                          const std::map<std::string, Tensor>& tensors) {
  require(config.targets.kind == nn::LoraTargets::Kind::all_linear || !config.targets.texts.empty(),
          "{}/adapter_config.json: target_modules names no layer of this model; the adapter is for "
          "another base",
          directory);
  auto layers = chosen_layers(model, config, directory);
  std::set<std::string> used;
  for (const nn::LoraLayer& item : layers) {
    const Shape& weight = item.layer->weight().value().shape();
    const Shape shapes[] = {{item.shape.rank, weight[1]}, {weight[0], item.shape.rank}};
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = tensor_name(item.name, kFactors[i]);
      const auto found = tensors.find(name);
      require(found != tensors.end(),
              "{}: there is no {}; adapter_config.json and this model ask for it", path, name);
      require(found->second.shape() == shapes[i],
              "{}: {} is {}, this model's layer needs {}; the adapter is for another base, or its "
              "rank is not that of adapter_config.json",
              path, name, found->second, shapes[i]);
      used.insert(name);
    }
  }
  for (const auto& [name, tensor] : tensors) {
    require(used.contains(name),
            "{}: {} ({}) belongs to no layer that adapter_config.json chooses in this model; the "
            "adapter is for another base",
            path, name, tensor);
  }
  return layers;
}

}  // namespace

std::string base_checksum(nn::Module& model) {
  std::string all;
  for (const auto& [name, tensor] : nn::base_state(model).tensors) {
    all += fmt::format("{} {}\n", name, hex(xxh64(FileBytes(tensor).bytes())));
  }
  return hex(xxh64(all));
}

PeftConfig load_peft(nn::Module& model, const std::string& adapter, const std::string& directory,
                     const nn::DropoutKey& key) {
  PeftConfig config = read_peft_config(directory);
  const std::string path = tensors_path(directory);
  const Safetensors file = read_safetensors(path);
  const auto tensors = factors_of(file, path);
  drop_unknown_targets(model, config.lora);
  const auto layers = fitting_layers(model, config.lora, directory, path, tensors);
  if (const auto found = file.metadata.find(kBaseChecksum); found != file.metadata.end()) {
    config.base.checksum = found->second;
  }
  check_base(model, config.base, path);
  nn::add_lora(model, adapter, config.lora, key, 0, peft_layer_name);
  const NoGrad off;
  for (const nn::LoraLayer& item : layers) {
    nn::LoraAdapter& own = *item.layer->adapters().back();
    const auto parameters = own.parameters();
    for (size_t i = 0; i < 2; ++i) {
      copy_(parameters[i]->value(), tensors.at(tensor_name(item.name, kFactors[i])));
    }
    nn::freeze(own);
  }
  return config;
}

namespace {

// "c_attn" and so on: the last words of the layers' names, which choose the same layers.
Json last_words(const std::vector<std::string>& layers) {
  std::set<std::string> words;
  for (const std::string& layer : layers) words.insert(layer.substr(layer.rfind('.') + 1));
  return Json::array_of(std::vector<std::string>(words.begin(), words.end()));
}

Json json_of(const nn::LoraTargets& targets, const std::vector<std::string>& layers) {
  switch (targets.kind) {
    case nn::LoraTargets::Kind::all_linear:
      return last_words(layers);
    case nn::LoraTargets::Kind::suffixes:
      return Json::array_of(targets.texts);
    case nn::LoraTargets::Kind::expression:
      break;
  }
  return targets.texts.front();
}

// Whole numbers without a point: readers in other languages expect integers.
Json number(double value) {
  constexpr double kExact = 0x1p53;  // up to here every whole number is a double
  const bool whole = std::abs(value) <= kExact && std::trunc(value) == value;
  return whole ? Json(static_cast<int64_t>(value)) : Json(value);
}

Json config_of(const nn::LoraConfig& config, const std::string& base_name,
               const std::vector<std::string>& layers) {
  Json ranks = Json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) ranks.set(pattern, rank);
  Json alphas = Json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas.set(pattern, number(alpha));
  // Conv1D of GPT-2 stores [in, out].
  const bool fan_in_fan_out = layers.front().starts_with("transformer.h.");
  return Json::object()
      .set("alpha_pattern", alphas)
      .set("base_model_name_or_path", base_name.empty() ? Json() : Json(base_name))
      .set("bias", "none")
      .set("fan_in_fan_out", fan_in_fan_out)
      .set("inference_mode", true)
      .set("init_lora_weights", true)
      .set("lora_alpha", number(config.alpha))
      .set("lora_dropout", config.dropout)
      .set("modules_to_save", Json())
      .set("peft_type", "LORA")
      .set("r", config.rank)
      .set("rank_pattern", ranks)
      .set("target_modules", json_of(config.targets, layers))
      .set("task_type", "CAUSAL_LM")
      .set("use_dora", false)
      .set("use_rslora", config.scaling == nn::LoraScaling::by_root_of_rank);
}

}  // namespace

void save_peft(nn::Module& model, const std::string& adapter, const nn::LoraConfig& config,
               const PeftBase& base, const std::string& directory) {
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> layers;
  for (const auto& [layer, own] : nn::adapters_of(model, adapter)) {
    layers.push_back(peft_layer_name(layer->path()));
    const auto parameters = own->parameters();
    for (size_t i = 0; i < 2; ++i) {
      tensors.emplace(tensor_name(layers.back(), kFactors[i]), parameters[i]->value().detach());
    }
  }
  AtomicDirectory written(directory);
  const std::string& place = written.temporary_path();
  std::map<std::string, std::string> metadata;
  if (!base.checksum.empty()) metadata[kBaseChecksum] = base.checksum;
  write_safetensors(place + "/adapter_model.safetensors", tensors, metadata);
  write_file_atomically(place + "/adapter_config.json",
                        config_of(config, base.name, layers).to_indented_text());
  written.commit();
}

}  // namespace faultline
