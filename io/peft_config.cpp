#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/peft.h"

namespace faultline {
namespace {

// Keys that say where an adapter comes from or how it was begun; what it computes does not depend
// on them.
constexpr std::string_view kHarmless[] = {"auto_mapping",
                                          "base_model_name_or_path",
                                          "ensure_weight_tying",
                                          "eva_config",
                                          "fan_in_fan_out",
                                          "inference_mode",
                                          "layers_pattern",
                                          "megatron_core",
                                          "peft_version",
                                          "qalora_group_size",
                                          "revision",
                                          "runtime_config",
                                          "task_type"};

// Keys that are read below.
constexpr std::string_view kRead[] = {"peft_type",        "r",
                                      "lora_alpha",       "lora_dropout",
                                      "use_rslora",       "target_modules",
                                      "rank_pattern",     "alpha_pattern",
                                      "init_lora_weights"};

// Keys that change what an adapter computes in a way that is not here.
constexpr std::string_view kRefused[] = {"alora_invocation_tokens",
                                         "arrow_config",
                                         "bias",
                                         "corda_config",
                                         "exclude_modules",
                                         "kasa_config",
                                         "layer_replication",
                                         "layers_to_transform",
                                         "loftq_config",
                                         "lora_bias",
                                         "lora_ga_config",
                                         "megatron_config",
                                         "modules_to_save",
                                         "monteclora_config",
                                         "target_parameters",
                                         "trainable_token_indices",
                                         "use_bdlora",
                                         "use_dora",
                                         "use_qalora",
                                         "velora_config"};

// Ways to begin that leave the base as it is. The others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA)
// subtract from the base's weights what the adapter starts with.
constexpr std::string_view kPlainStarts[] = {"gaussian", "eva", "orthogonal"};

template <size_t N>
bool among(std::string_view key, const std::string_view (&keys)[N]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// Whether a value says that the thing is not used.
bool is_absent(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::null:
      return true;
    case Json::Kind::boolean:
      return !value.boolean();
    case Json::Kind::text:
      return value.text().empty() || value.text() == "none";
    case Json::Kind::array:
      return value.items().empty();
    case Json::Kind::object:
      return value.members().empty();
    default:
      return false;
  }
}

class Reader {
 public:
  explicit Reader(std::string path)
      : path_(std::move(path)), json_(Json::parse(map_file(path_).text(), path_)) {}

  PeftConfig read() {
    require(json_.is(Json::Kind::object), "{}: expected a JSON object, found {}", path_,
            name(json_.kind()));
    PeftConfig config;
    const Json* type = json_.find("peft_type");
    require(type != nullptr, "{}: there is no 'peft_type'; expected \"LORA\"", path_);
    require(type->is(Json::Kind::text) && type->text() == "LORA",
            "{}: peft_type is {}, only \"LORA\" is known here", path_, type->to_text());
    check_keys(config);
    read_lora(config.lora);
    if (const Json* base = json_.find("base_model_name_or_path");
        base != nullptr && base->is(Json::Kind::text)) {
      config.base.name = base->text();
    }
    return config;
  }

 private:
  void check_keys(PeftConfig& config) const {
    for (const JsonMember& member : json_.members()) {
      const bool known = among(member.key, kRead) || among(member.key, kHarmless);
      if (known || is_absent(member.value)) continue;
      require(!among(member.key, kRefused),
              "{}: {} is {}, which changes what the adapter computes and is not known here; only "
              "plain LoRA is read",
              path_, member.key, member.value.to_text());
      config.unknown.push_back(member.key);
    }
    const Json* start = json_.find("init_lora_weights");
    if (start == nullptr || !start->is(Json::Kind::text)) return;
    require(among(start->text(), kPlainStarts),
            "{}: init_lora_weights is \"{}\", which changes the base's weights too; convert the "
            "adapter to plain LoRA when you save it (path_initial_model_for_weight_conversion)",
            path_, start->text());
  }

  void read_lora(nn::LoraConfig& lora) {
    lora.rank = value("r", lora.rank, rank);
    lora.alpha = value("lora_alpha", lora.alpha, alpha);
    lora.dropout = value("lora_dropout", 0.0, [](const Json& json) {
      const double p = json.real();
      require(p >= 0 && p < 1, "expected at least 0 and below 1, found {}", p);
      return p;
    });
    const bool by_root =
        value("use_rslora", false, [](const Json& json) { return json.boolean(); });
    lora.scaling = by_root ? nn::LoraScaling::by_root_of_rank : nn::LoraScaling::by_rank;
    const Json* listed = json_.find("target_modules");
    require(listed != nullptr && !listed->is(Json::Kind::null),
            "{}: there is no 'target_modules'; name the layers that have an adapter", path_);
    lora.targets = value("target_modules", nn::LoraTargets{}, targets);
    lora.rank_pattern = patterns<int64_t>("rank_pattern", rank);
    lora.alpha_pattern = patterns<double>("alpha_pattern", alpha);
    check_expressions(lora);
    try {
      lora.check();
    } catch (const InvalidArgument& error) {
      fail("{}: {}", path_, error.what());
    }
  }

  // An expression that cannot be used is told with the key that holds it.
  void check_expressions(const nn::LoraConfig& lora) const {
    const std::pair<const char*, nn::LoraConfig> parts[] = {
        {"target_modules", {.targets = lora.targets}},
        {"rank_pattern", {.rank_pattern = lora.rank_pattern}},
        {"alpha_pattern", {.alpha_pattern = lora.alpha_pattern}}};
    for (const auto& [key, part] : parts) {
      try {
        part.check();
      } catch (const InvalidArgument& error) {
        fail("{}: {}: {}", path_, key, error.what());
      }
    }
  }

  static int64_t rank(const Json& json) {
    const int64_t r = json.integer();
    require(r >= 1, "expected a rank of at least 1, found {}", r);
    return r;
  }

  static double alpha(const Json& json) {
    const double value = json.real();
    require(std::isfinite(value) && value != 0,
            "expected a finite number that is not 0, found {}; with 0 the adapter has no effect",
            value);
    return value;
  }

  static nn::LoraTargets targets(const Json& json) {
    using Kind = nn::LoraTargets::Kind;
    if (json.is(Json::Kind::text)) {
      std::string lower = json.text();
      std::transform(lower.begin(), lower.end(), lower.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      if (lower == "all-linear") return {};
      return {Kind::expression, {json.text()}};
    }
    nn::LoraTargets result{Kind::suffixes, {}};
    for (const Json& item : json.items()) result.texts.push_back(item.text());
    require(!result.texts.empty(), "expected at least one layer, found []");
    return result;
  }

  // The key's value as `read` gives it; `otherwise` when the key is not there or null. What read
  // throws is told with the file and the key.
  template <class T, class Read>
  T value(const char* key, T otherwise, Read&& read) const {
    const Json* json = json_.find(key);
    if (json == nullptr || json->is(Json::Kind::null)) return otherwise;
    try {
      return read(*json);
    } catch (const InvalidArgument& error) {
      fail("{}: {}: {}", path_, key, error.what());
    }
  }

  template <class T, class Read>
  std::vector<std::pair<std::string, T>> patterns(const char* key, Read&& read) const {
    using Patterns = std::vector<std::pair<std::string, T>>;
    return value(key, Patterns{}, [&](const Json& json) {
      Patterns result;
      for (const JsonMember& member : json.members()) {
        try {
          result.emplace_back(member.key, read(member.value));
        } catch (const InvalidArgument& error) {
          fail("'{}': {}", member.key, error.what());
        }
      }
      return result;
    });
  }

  std::string path_;
  Json json_;
};

}  // namespace

PeftConfig read_peft_config(const std::string& directory) {
  return Reader(directory + "/adapter_config.json").read();
}

}  // namespace faultline
