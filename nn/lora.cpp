#include "nn/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/rng.h"
#include "nn/name_pattern.h"

namespace faultline::nn {

double LoraScaleSeam::standard(const LoraShape& shape) {
  const auto rank = static_cast<double>(shape.rank);
  return shape.alpha / (shape.scaling == LoraScaling::by_rank ? rank : std::sqrt(rank));
}

void LoraInitSeam::standard(const Tensor& a, const Tensor& b, uint64_t seed, uint64_t stream) {
  const double bound = 1 / std::sqrt(static_cast<double>(a.size(1)));
  copy_(a, uniform(a.shape(), -bound, bound, seed, stream));
  fill_(b, 0);
}

LoraFactors LoraStorageSeam::standard(const Shape& a, const Shape& b, DType dtype) {
  return {zeros(a, dtype), zeros(b, dtype)};
}

namespace {

void check_shape(int64_t rank, double alpha, const std::string& where) {
  require(rank >= 1, "lora: {} must be at least 1, got {}", where.empty() ? "rank" : where, rank);
  require(std::isfinite(alpha) && alpha != 0,
          "lora: {} must be finite and not 0 (the adapter would have no effect), got {}",
          where.empty() ? "alpha" : where, alpha);
}

// Whether the name ends in `suffix`, at its beginning or after a dot.
bool ends_in(const std::string& name, const std::string& suffix) {
  return name == suffix || name.ends_with("." + suffix);
}

constexpr const char* kHead = "lm_head";

}  // namespace

void LoraConfig::check() const {
  check_shape(rank, alpha, "");
  require(dropout >= 0 && dropout < 1, "lora: dropout must be in [0, 1), got {}", dropout);
  require(targets.kind == LoraTargets::Kind::all_linear || !targets.texts.empty(),
          "lora: the targets are empty; name the layers that get an adapter, or all-linear");
  if (targets.kind == LoraTargets::Kind::expression) {
    require(targets.texts.size() == 1, "lora: expected one expression, got {}",
            targets.texts.size());
    NamePattern::whole(targets.texts.front());
  }
  for (const auto& [pattern, own] : rank_pattern) {
    check_shape(own, 1, fmt::format("rank_pattern '{}'", pattern));
    NamePattern::end(pattern);
  }
  for (const auto& [pattern, own] : alpha_pattern) {
    check_shape(1, own, fmt::format("alpha_pattern '{}'", pattern));
    NamePattern::end(pattern);
  }
}

LoraAdapter::LoraAdapter(int64_t in, int64_t out, const LoraShape& shape, double dropout,
                         const DropoutKey& key)
    : shape_(shape),
      scale_(Context::current().seams.call<LoraScaleSeam>(shape)),
      a_(add_parameter("lora_A.weight", {shape.rank, in}, Decay::yes)),
      b_(add_parameter("lora_B.weight", {out, shape.rank}, Decay::yes)),
      dropout_(dropout, key) {
  check_shape(shape.rank, shape.alpha, "");
  const auto [a, b] = Context::current().seams.call<LoraStorageSeam>(
      a_.value().shape(), b_.value().shape(), a_.value().dtype());
  a_.set_value(a);
  b_.set_value(b);
  add_child("lora_dropout", dropout_);
}

Tensor LoraAdapter::operator()(const Tensor& x) {
  return unit([&] {
    const Tensor& a_RI = use(a_);
    // Scaled where it is narrow.
    return linear(linear(dropout_(cast(x, a_RI.dtype())), a_RI) * scale_, use(b_));
  });
}

Tensor LoraAdapter::product() const {
  const NoGrad off;
  return matmul(b_.value(), a_.value()) * scale_;
}

void LoraAdapter::initialize(uint64_t seed) {
  const NoGrad off;
  Context::current().seams.call<LoraInitSeam>(a_.value(), b_.value(), seed,
                                              stream_of(a_.name().c_str()));
}

LayerName layer_paths() {
  return [](const std::string& path) { return path; };
}

namespace {

// Every Linear of the model and its name.
std::vector<std::pair<Linear*, std::string>> linear_layers(Module& model,
                                                           const LayerName& name_of) {
  std::vector<std::pair<Linear*, std::string>> layers;
  model.visit([&](Module& module) {
    if (auto* layer = dynamic_cast<Linear*>(&module)) {
      layers.emplace_back(layer, name_of(layer->path()));
    }
  });
  return layers;
}

// The value of the first pattern that matches; none when no pattern does.
template <class T>
std::optional<T> of_pattern(const std::vector<std::pair<std::string, T>>& patterns,
                            const std::string& name) {
  for (const auto& [pattern, value] : patterns) {
    if (NamePattern::end(pattern).matches(name)) return value;
  }
  return std::nullopt;
}

bool is_target(const LoraTargets& targets, const std::string& name) {
  switch (targets.kind) {
    case LoraTargets::Kind::all_linear:
      return !ends_in(name, kHead);
    case LoraTargets::Kind::suffixes:
      return std::any_of(targets.texts.begin(), targets.texts.end(),
                         [&](const std::string& suffix) { return ends_in(name, suffix); });
    case LoraTargets::Kind::expression:
      return NamePattern::whole(targets.texts.front()).matches(name);
  }
  return false;
}

// The last words of the names, each once: "c_attn, c_proj".
std::string last_words(const std::vector<std::pair<Linear*, std::string>>& layers) {
  std::vector<std::string> words;
  for (const auto& [layer, name] : layers) {
    const std::string word = name.substr(name.rfind('.') + 1);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::vector<LoraLayer> lora_layers(Module& model, const LoraConfig& config,
                                   const LayerName& name_of) {
  config.check();
  const auto all = linear_layers(model, name_of);
  const auto known = [&](const std::string& suffix) {
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& item) { return ends_in(item.second, suffix); });
  };
  if (config.targets.kind == LoraTargets::Kind::suffixes) {
    for (const std::string& suffix : config.targets.texts) {
      require(known(suffix), "lora: no linear layer is called '{}'; their names end in {}", suffix,
              last_words(all));
    }
  }
  std::vector<LoraLayer> chosen;
  for (const auto& [layer, name] : all) {
    if (!is_target(config.targets, name)) continue;
    chosen.push_back(
        {layer,
         name,
         {of_pattern(config.rank_pattern, name).value_or(config.rank),
          of_pattern(config.alpha_pattern, name).value_or(config.alpha), config.scaling}});
  }
  require(!chosen.empty(), "lora: the targets choose no linear layer; their names end in {}",
          last_words(all));
  return chosen;
}

void add_lora(Module& model, const std::string& adapter, const LoraConfig& config,
              const DropoutKey& key, uint64_t seed, const LayerName& name_of) {
  const bool plain = std::all_of(adapter.begin(), adapter.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
  });
  require(plain && !adapter.empty() && adapter != "weight" && adapter != "bias",
          "lora: '{}' cannot name an adapter; use letters, digits, _ and -", adapter);
  const std::vector<LoraLayer> layers = lora_layers(model, config, name_of);
  for (const LoraLayer& item : layers) {
    for (const auto& other : item.layer->adapters()) {
      require(!std::string(other->path()).ends_with("." + adapter),
              "lora: {} has an adapter '{}' already; choose another name", item.name, adapter);
      require(other->role() != AdapterRole::merged,
              "lora: {} is merged into {}; unmerge it before another adapter comes", other->path(),
              item.name);
    }
  }
  freeze(model);
  for (const LoraLayer& item : layers) {
    const Shape& weight = item.layer->weight().value().shape();
    auto made =
        std::make_unique<LoraAdapter>(weight[1], weight[0], item.shape, config.dropout, key);
    LoraAdapter& own = *made;
    item.layer->attach(adapter, std::move(made));
    own.initialize(seed);
  }
}

namespace {

// Calls visitor(layer, adapter, its name) for each adapter of the model.
void visit_adapters(
    Module& model,
    const std::function<void(Linear&, LoraAdapter&, const std::string& name)>& visitor) {
  for (const auto& [layer, path] : linear_layers(model, layer_paths())) {
    for (const auto& adapter : layer->adapters()) {
      const std::string own = adapter->path();
      visitor(*layer, *adapter, own.substr(own.rfind('.') + 1));
    }
  }
}

// Their names, each once.
std::vector<std::string> adapter_names(Module& model) {
  std::vector<std::string> names;
  visit_adapters(model, [&](Linear&, LoraAdapter&, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  });
  return names;
}

}  // namespace

std::vector<std::pair<Linear*, LoraAdapter*>> adapters_of(Module& model,
                                                          const std::string& adapter) {
  std::vector<std::pair<Linear*, LoraAdapter*>> found;
  visit_adapters(model, [&](Linear& layer, LoraAdapter& own, const std::string& name) {
    if (name == adapter) found.emplace_back(&layer, &own);
  });
  if (found.empty()) {
    const std::vector<std::string> names = adapter_names(model);
    fail("lora: the model has no adapter '{}'; {}", adapter,
         names.empty() ? "it has none at all" : fmt::format("it has {}", fmt::join(names, ", ")));
  }
  return found;
}

void activate(Module& model, const std::vector<std::string>& adapters) {
  for (const std::string& name : adapters) adapters_of(model, name);
  visit_adapters(model, [](Linear&, LoraAdapter& adapter, const std::string&) {
    require(adapter.role() != AdapterRole::merged,
            "lora: {} is merged into its layer; unmerge it before others are made active",
            adapter.path());
  });
  visit_adapters(model, [&](Linear&, LoraAdapter& adapter, const std::string& name) {
    const bool chosen = std::find(adapters.begin(), adapters.end(), name) != adapters.end();
    adapter.set_role(chosen ? AdapterRole::active : AdapterRole::off);
  });
}

void freeze(Module& model) {
  for (Parameter* parameter : model.parameters()) {
    parameter->set_trainable(false);
    parameter->clear_gradient();
  }
}

std::vector<Parameter*> trainable_parameters(Module& model) {
  std::vector<Parameter*> trained = model.parameters();
  std::erase_if(trained, [](const Parameter* parameter) { return !parameter->trainable(); });
  return trained;
}

TrainableSet trainable_set(Module& model) {
  TrainableSet set;
  for (const Parameter* parameter : model.parameters()) {
    (parameter->trainable() ? set.trained : set.frozen) += parameter->value().numel();
    if (parameter->trainable()) set.names.push_back(parameter->name());
  }
  return set;
}

namespace {
// The parameters of the model that belong to an adapter, by name.
std::vector<std::string> adapter_parameters(Module& model) {
  std::vector<std::string> names;
  visit_adapters(model, [&](Linear&, LoraAdapter& adapter, const std::string&) {
    for (const Parameter* parameter : adapter.parameters()) names.push_back(parameter->name());
  });
  std::sort(names.begin(), names.end());
  return names;
}
}  // namespace

void check_trainable(Module& model) {
  const TrainableSet set = trainable_set(model);
  require(!set.names.empty(), "lora: nothing is trained: every parameter of the model is frozen");
  const std::vector<std::string> own = adapter_parameters(model);
  if (own.empty()) return;
  for (const std::string& name : set.names) {
    require(std::binary_search(own.begin(), own.end(), name),
            "lora: {} of the base is trained beside the adapters; freeze the base, or train it "
            "without adapters",
            name);
  }
  visit_adapters(model, [](Linear&, LoraAdapter& adapter, const std::string&) {
    const bool trained = !trainable_parameters(adapter).empty();
    require(!trained || adapter.role() == AdapterRole::active,
            "lora: {} is trained but {}, so no gradient reaches it; {}", adapter.path(),
            adapter.role() == AdapterRole::merged ? "merged" : "not active",
            adapter.role() == AdapterRole::merged ? "unmerge it" : "make it active");
  });
}

namespace {

// The part of the model's state that belongs to adapters, or the other one.
State part_of(Module& model, bool adapters) {
  const std::vector<std::string> own = adapter_parameters(model);
  State state = model.state();
  std::erase_if(state.tensors, [&](const auto& item) {
    return std::binary_search(own.begin(), own.end(), item.first) != adapters;
  });
  return state;
}

// What `given` lacks is taken from the model itself.
void load_with(Module& model, const State& given, State rest) {
  for (const auto& [name, tensor] : given.tensors) {
    require(rest.tensors.emplace(name, tensor).second,
            "lora: the state holds '{}' ({}), which is no part of what is loaded", name, tensor);
  }
  model.load(rest);
}

}  // namespace

State base_state(Module& model) { return part_of(model, false); }
State adapter_state(Module& model) { return part_of(model, true); }
void load_base(Module& model, const State& state) { load_with(model, state, adapter_state(model)); }
void load_adapters(Module& model, const State& state) {
  load_with(model, state, base_state(model));
}

}  // namespace faultline::nn
