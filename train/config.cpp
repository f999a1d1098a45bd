#include "train/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>
#include <variant>

#include "core/context.h"
#include "core/error.h"
#include "data/corpus.h"
#include "io/hf_config_parts.h"
#include "io/mapped_file.h"
#include "train/lora.h"

namespace faultline::train {
namespace {

// Every key once, with the member that holds it.
using Member = std::variant<int64_t Config::*, uint64_t Config::*, double Config::*, bool Config::*,
                            std::string Config::*, Json Config::*>;
struct Key {
  const char* name;
  Member member;
};
constexpr Key kKeys[] = {
    {"family", &Config::family},
    {"num_layers", &Config::num_layers},
    {"num_heads", &Config::num_heads},
    {"num_key_value_heads", &Config::num_key_value_heads},
    {"hidden_size", &Config::hidden_size},
    {"head_size", &Config::head_size},
    {"intermediate_size", &Config::intermediate_size},
    {"rope_theta", &Config::rope_theta},
    {"rope_scaling", &Config::rope_scaling},
    {"window", &Config::window},
    {"vocab_size", &Config::vocab_size},
    {"seq_len", &Config::seq_len},
    {"batch_size", &Config::batch_size},
    {"micro_batch_size", &Config::micro_batch_size},
    {"lr", &Config::lr},
    {"min_lr", &Config::min_lr},
    {"warmup_steps", &Config::warmup_steps},
    {"schedule_steps", &Config::schedule_steps},
    {"schedule", &Config::schedule},
    {"weight_decay", &Config::weight_decay},
    {"beta1", &Config::beta1},
    {"beta2", &Config::beta2},
    {"eps", &Config::eps},
    {"clip_norm", &Config::clip_norm},
    {"dropout", &Config::dropout},
    {"init_std", &Config::init_std},
    {"attention", &Config::attention},
    {"counted_steps", &Config::counted_steps},
    {"seed", &Config::seed},
    {"eval_every", &Config::eval_every},
    {"documents", &Config::documents},
    {"pack", &Config::pack},
    {"lora", &Config::lora},
};

const Key& find(const std::string& name) {
  for (const Key& key : kKeys) {
    if (name == key.name) return key;
  }
  fail("config: there is no key '{}'; {}", name,
       suggestion(name, config_keys(), "faultline train tiny --print-config shows them all"));
}

// What each kind of key takes, for errors.
const char* expected(int64_t) { return "a whole number"; }
const char* expected(uint64_t) { return "a whole number that is not negative"; }
const char* expected(double) { return "a number"; }
const char* expected(bool) { return "true or false"; }
const char* expected(const Json&) { return "a JSON object"; }

template <class T>
T parse(const Key& key, const std::string& text) {
  T value{};
  if constexpr (std::same_as<T, std::string>) {
    return text;
  } else if constexpr (std::same_as<T, bool>) {
    if (text == "true" || text == "false") return text == "true";
  } else if constexpr (std::same_as<T, Json>) {
    if (text.empty()) return value;
    Json given = Json::parse(text, fmt::format("config: {}", key.name));
    if (given.is(Json::Kind::object) || given.is(Json::Kind::null)) return given;
  } else {
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec == std::errc{} && result.ptr == end) return value;
  }
  if constexpr (!std::same_as<T, std::string>) {
    fail("config: {} takes {}, got '{}'", key.name, expected(value), text);
  }
}

std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(uint64_t value) { return std::to_string(value); }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::string& value) { return value; }
std::string text_of(const Json& value) { return value.is(Json::Kind::null) ? "" : value.to_text(); }
std::string text_of(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// Calls body with the member's type as a value: std::visit over the kinds of a key.
template <class Body>
decltype(auto) with_member(const Key& key, Body&& body) {
  return std::visit([&](auto member) -> decltype(auto) { return body(member); }, key.member);
}

template <class T>
T read(const Config& config, T Config::*member) {
  return config.*member;
}

struct Preset {
  const char* name;
  std::vector<std::pair<const char*, const char*>> values;
};

const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> presets = {
      // For tests: a step takes a fraction of a millisecond.
      {"tiny",
       {{"num_layers", "2"},
        {"num_heads", "2"},
        {"hidden_size", "32"},
        {"vocab_size", "256"},
        {"seq_len", "32"},
        {"batch_size", "4"},
        {"lr", "3e-3"},
        {"min_lr", "3e-4"},
        {"warmup_steps", "20"},
        {"schedule_steps", "300"}}},
      // Learns to write English in some minutes on two cores.
      {"char",
       {{"num_layers", "4"},
        {"num_heads", "4"},
        {"hidden_size", "128"},
        {"vocab_size", "256"},
        {"seq_len", "128"},
        {"batch_size", "16"},
        {"lr", "2e-3"},
        {"min_lr", "2e-4"},
        {"warmup_steps", "100"},
        {"schedule_steps", "1500"},
        {"beta2", "0.99"},
        {"eval_every", "250"}}},
      // The 124M model of GPT-2 with its vocabulary rounded up to a multiple of 128.
      {"gpt2",
       {{"num_layers", "12"},
        {"num_heads", "12"},
        {"hidden_size", "768"},
        {"vocab_size", "50304"},
        {"seq_len", "1024"},
        {"batch_size", "8"},
        {"micro_batch_size", "1"},
        {"lr", "6e-4"},
        {"min_lr", "6e-5"},
        {"warmup_steps", "2000"},
        {"schedule_steps", "600000"},
        {"beta2", "0.95"},
        {"eval_every", "1000"}}},
      // For tests: a Llama whose query heads share key heads two by two.
      {"llama-tiny",
       {{"family", "llama"},
        {"num_layers", "2"},
        {"num_heads", "4"},
        {"num_key_value_heads", "2"},
        {"hidden_size", "32"},
        {"intermediate_size", "96"},
        {"vocab_size", "256"},
        {"seq_len", "32"},
        {"batch_size", "4"},
        {"lr", "3e-3"},
        {"min_lr", "3e-4"},
        {"warmup_steps", "20"},
        {"schedule_steps", "300"}}},
  };
  return presets;
}

// Edits (insert, delete, replace, swap neighbours) from a to b: the optimal string alignment
// distance.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

namespace {

// GPT-2 has no choice where Llama has one.
void check_gpt2(const Config& config) {
  require(config.num_key_value_heads == 0 || config.num_key_value_heads == config.num_heads,
          "num_key_value_heads: GPT-2 has one key head a query head ({}), got {}; set family=llama "
          "to share them",
          config.num_heads, config.num_key_value_heads);
  const Config defaults;
  const auto unset = [](const char* key, auto value, auto otherwise) {
    require(value == otherwise, "{}: GPT-2 has none, got {}; set family=llama or leave it out", key,
            value);
  };
  unset("head_size", config.head_size, defaults.head_size);
  unset("intermediate_size", config.intermediate_size, defaults.intermediate_size);
  unset("rope_theta", config.rope_theta, defaults.rope_theta);
  unset("rope_scaling", text_of(config.rope_scaling), text_of(defaults.rope_scaling));
}

nn::Gpt2Config gpt2_of(const Config& config) {
  nn::Gpt2Config model;
  model.vocab_size = config.vocab_size;
  model.seq_len = config.seq_len;
  model.num_layers = config.num_layers;
  model.num_heads = config.num_heads;
  model.hidden_size = config.hidden_size;
  model.dropout = config.dropout;
  model.init_std = config.init_std;
  model.window = config.window;
  return model;
}

// 8/3 keeps a gated MLP of three matrices as large as one of two with the usual factor 4.
int64_t usual_intermediate_size(int64_t hidden_size) {
  // A width that no machine's memory holds is refused later; it must not overflow here.
  const int64_t width = std::min(hidden_size, int64_t{1} << 40);
  return (8 * width / 3 + 15) / 16 * 16;
}

nn::RopeConfig rope_of(const Config& config) {
  nn::RopeConfig rope;
  if (!config.rope_scaling.is(Json::Kind::null)) {
    require(config.rope_scaling.find("rope_theta") == nullptr,
            "rope_scaling: rope_theta has a key of its own; take it out and set rope_theta");
    rope = read_rope(config.rope_scaling, "rope_scaling", config.seq_len);
  }
  rope.theta = config.rope_theta;
  return rope;
}

nn::LlamaConfig llama_of(const Config& config) {
  nn::LlamaConfig model;
  model.vocab_size = config.vocab_size;
  model.seq_len = config.seq_len;
  model.num_layers = config.num_layers;
  model.num_heads = config.num_heads;
  model.num_key_value_heads =
      config.num_key_value_heads != 0 ? config.num_key_value_heads : config.num_heads;
  model.hidden_size = config.hidden_size;
  model.head_size = config.head_size;
  model.intermediate_size = config.intermediate_size != 0
                                ? config.intermediate_size
                                : usual_intermediate_size(config.hidden_size);
  model.rope = rope_of(config);
  model.dropout = config.dropout;
  model.init_std = config.init_std;
  model.window = config.window;
  return model;
}

}  // namespace

void Config::check() const {
  std::visit([](const auto& model) { model.check(); }, model());
  if (family == "gpt2") check_gpt2(*this);
  const auto at_least = [](const char* key, int64_t value, int64_t least) {
    require(value >= least, "{}: must be at least {}, got {}", key, least, value);
  };
  at_least("batch_size", batch_size, 1);
  at_least("micro_batch_size", micro_batch_size, 0);
  at_least("warmup_steps", warmup_steps, 0);
  at_least("schedule_steps", schedule_steps, 1);
  at_least("eval_every", eval_every, 0);
  require(
      micro_batch_size <= batch_size,
      "micro_batch_size: {} sequences at a time are more than batch_size {}; choose at most that",
      micro_batch_size, batch_size);
  const auto not_negative = [](const char* key, double value) {
    require(std::isfinite(value) && value >= 0, "{}: must be finite and not negative, got {}", key,
            value);
  };
  not_negative("lr", lr);
  not_negative("min_lr", min_lr);
  not_negative("weight_decay", weight_decay);
  not_negative("eps", eps);
  not_negative("clip_norm", clip_norm);
  not_negative("counted_steps", static_cast<double>(counted_steps));
  require(min_lr <= lr, "min_lr: {} is above lr {}; the schedule goes down", min_lr, lr);
  require(warmup_steps <= schedule_steps, "warmup_steps: {} is above schedule_steps {}",
          warmup_steps, schedule_steps);
  for (const auto& [key, value] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    require(value >= 0 && value < 1, "{}: must be in [0, 1), got {}", key, value);
  }
  nn::attention_policy_from_name(attention);
  optim::decline_from_name(schedule);
  if (!documents.empty()) documents_from_name(documents);
  if (!lora.empty()) lora_from_text(lora);
}

nn::ModelConfig Config::model() const {
  require(family == "gpt2" || family == "llama", "family: expected gpt2 or llama, got '{}'",
          family);
  if (family == "gpt2") return gpt2_of(*this);
  return llama_of(*this);
}

optim::Schedule Config::learning_rate() const {
  return {optim::decline_from_name(schedule), lr, min_lr, warmup_steps, schedule_steps};
}

std::shared_ptr<void> Config::apply_attention_policy() const {
  const nn::AttentionPolicy policy = nn::attention_policy_from_name(attention);
  if (policy.kind == nn::AttentionPolicy::Kind::automatic) return nullptr;
  return Context::current().seams.replace<nn::AttentionPolicySeam>([policy] { return policy; });
}

std::vector<std::string> config_keys() {
  std::vector<std::string> names;
  for (const Key& key : kKeys) names.emplace_back(key.name);
  return names;
}

ConfigBuilder::ConfigBuilder() {
  const Config defaults;
  for (const Key& key : kKeys) {
    entries_.push_back({key.name, "", "default"});
    with_member(key, [&](auto member) { entries_.back().value = text_of(read(defaults, member)); });
  }
}

std::vector<std::string> ConfigBuilder::presets() {
  std::vector<std::string> names;
  for (const Preset& preset : all_presets()) names.emplace_back(preset.name);
  return names;
}

ConfigBuilder ConfigBuilder::preset(const std::string& name) {
  for (const Preset& preset : all_presets()) {
    if (name != preset.name) continue;
    ConfigBuilder builder;
    for (const auto& [key, value] : preset.values) builder.set(key, value, "preset " + name);
    return builder;
  }
  fail("'{}' is no preset, and no file of that name is there; {}", name,
       suggestion(name, presets()));
}

ConfigBuilder ConfigBuilder::file(const std::string& path) {
  const MappedFile file = map_file(path);
  const Json values = Json::parse(file.text(), path);
  require(values.is(Json::Kind::object), "{}: expected a JSON object of configuration keys, got {}",
          path, faultline::name(values.kind()));
  ConfigBuilder builder;
  for (const JsonMember& member : values.members())
    builder.set_json(member.key, member.value, path);
  return builder;
}

ConfigBuilder ConfigBuilder::recorded(const Json& values, const Json& sources) {
  ConfigBuilder builder;
  for (const JsonMember& member : values.members()) {
    builder.set_json(member.key, member.value, sources.at(member.key).text());
  }
  return builder;
}

ConfigEntry& ConfigBuilder::entry(const std::string& key) {
  return entries_[static_cast<size_t>(&find(key) - kKeys)];
}

const std::string& ConfigBuilder::value(const std::string& key) const {
  return entries_[static_cast<size_t>(&find(key) - kKeys)].value;
}

void ConfigBuilder::set(const std::string& key, const std::string& value,
                        const std::string& source) {
  const Key& known = find(key);
  // Written again, so that 0.1, .1 and 1e-1 are one value.
  const std::string canonical =
      with_member(known, [&]<class T>(T Config::*) { return text_of(parse<T>(known, value)); });
  ConfigEntry& own = entry(key);
  own.value = canonical;
  own.source = source;
}

void ConfigBuilder::set_json(const std::string& key, const Json& value, const std::string& source) {
  const Key& known = find(key);
  const bool fits = with_member(known, [&]<class T>(T Config::*) {
    if constexpr (std::same_as<T, std::string>) return value.is(Json::Kind::text);
    if constexpr (std::same_as<T, bool>) return value.is(Json::Kind::boolean);
    if constexpr (std::same_as<T, Json>) {
      return value.is(Json::Kind::object) || value.is(Json::Kind::null);
    }
    if constexpr (std::same_as<T, double>) {
      return value.is(Json::Kind::real) || value.is(Json::Kind::integer);
    }
    return value.is(Json::Kind::integer);
  });
  // A seed above 2^63 is written as text.
  require(fits || value.is(Json::Kind::text), "{}: {} cannot be {}", source, key,
          faultline::name(value.kind()));
  set(key, value.is(Json::Kind::text) ? value.text() : value.to_text(), source);
}

void ConfigBuilder::assign(const std::string& assignment, const std::string& source) {
  const size_t equals = assignment.find('=');
  require(equals != std::string::npos && equals > 0, "{}: expected key=value, got '{}'", source,
          assignment);
  set(assignment.substr(0, equals), assignment.substr(equals + 1), source);
}

std::optional<std::string> ConfigBuilder::user_value(const std::string& key) const {
  const ConfigEntry& own = entries_[static_cast<size_t>(&find(key) - kKeys)];
  const bool given = own.source == "default" || own.source == "fault";
  if (given || own.source.starts_with("preset ")) return std::nullopt;
  return own.value;
}

Config ConfigBuilder::build() const {
  Config config;
  for (const ConfigEntry& own : entries_) {
    const Key& key = find(own.key);
    with_member(key,
                [&]<class T>(T Config::*member) { config.*member = parse<T>(key, own.value); });
  }
  config.check();
  return config;
}

Json ConfigBuilder::to_json() const {
  Json values = Json::object();
  for (const ConfigEntry& own : entries_) {
    const Key& key = find(own.key);
    with_member(key, [&]<class T>(T Config::*) {
      const T value = parse<T>(key, own.value);
      if constexpr (std::same_as<T, uint64_t>) {
        const bool fits = std::in_range<int64_t>(value);
        values.set(own.key, fits ? Json(static_cast<int64_t>(value)) : Json(own.value));
      } else {
        values.set(own.key, Json(value));
      }
    });
  }
  return values;
}

Json ConfigBuilder::sources() const {
  Json sources = Json::object();
  for (const ConfigEntry& own : entries_) sources.set(own.key, Json(own.source));
  return sources;
}

std::string nearest(const std::string& text, const std::vector<std::string>& names) {
  std::string best;
  size_t least = std::string::npos;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(text, name);
    if (distance < least) {
      least = distance;
      best = name;
    }
  }
  return best;
}

std::string suggestion(const std::string& text, const std::vector<std::string>& names,
                       const std::string& listing) {
  const std::string best = nearest(text, names);
  const size_t far = std::max<size_t>(2, std::max(text.size(), best.size()) / 3);
  const bool extends = !text.empty() && (best.starts_with(text) || text.starts_with(best));
  if (!best.empty() && (extends || edit_distance(text, best) <= far)) {
    return fmt::format("did you mean '{}'?", best);
  }
  constexpr size_t kShown = 12;
  if (names.size() > kShown && !listing.empty()) return listing;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return "expected one of: " + list;
}

}  // namespace faultline::train
