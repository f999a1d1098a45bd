#include "core/error.h"
#include "io/hf_config_parts.h"

namespace faultline {
namespace {

struct ScalingName {
  const char* name;
  nn::RopeScaling scaling;
};
constexpr ScalingName kScalings[] = {{"default", nn::RopeScaling::none},
                                     {"linear", nn::RopeScaling::linear},
                                     {"dynamic", nn::RopeScaling::dynamic_ntk},
                                     {"yarn", nn::RopeScaling::yarn},
                                     {"llama3", nn::RopeScaling::llama3}};

const char* name_of(nn::RopeScaling scaling) {
  for (const ScalingName& known : kScalings) {
    if (known.scaling == scaling) return known.name;
  }
  return "default";
}

// "rope_type", or "type" as the first configurations had it.
nn::RopeScaling read_scaling(JsonFields& fields) {
  const auto now = fields.text("rope_type");
  const auto before = fields.text("type");
  if (now && before && *now != *before) fields.refuse("type", "contradicts rope_type");
  const std::string name = now.value_or(before.value_or("default"));
  for (const ScalingName& known : kScalings) {
    if (name == known.name) return known.scaling;
  }
  fields.refuse(now ? "rope_type" : "type",
                "is not known here; default, linear, dynamic, yarn and llama3 are");
}

double at_least_one(JsonFields& fields, std::string_view key) {
  const auto value = fields.real(key);
  if (!value || *value < 1) fields.refuse(key, "should be a number from 1");
  return *value;
}

double not_negative(JsonFields& fields, std::string_view key) {
  const double value = fields.real(key, 0);
  if (value < 0) fields.refuse(key, "should not be negative");
  return value;
}

// What a scaling needs beside its factor. `positions` is max_position_embeddings.
void read_scaling_keys(JsonFields& fields, int64_t positions, nn::RopeConfig& rope) {
  const int64_t original = size(fields, "original_max_position_embeddings", positions);
  switch (rope.scaling) {
    case nn::RopeScaling::none:
      fields.require_off("factor", "rope_type default scales nothing");
      return;
    case nn::RopeScaling::linear:
      break;
    case nn::RopeScaling::dynamic_ntk:
      if (original != positions) {
        fields.refuse(
            "original_max_position_embeddings",
            fmt::format("dynamic scaling begins at max_position_embeddings {}", positions));
      }
      rope.original_positions = positions;
      break;
    case nn::RopeScaling::llama3:
      rope.original_positions = original;
      rope.low_frequency_factor = positive(fields, "low_freq_factor", 1);
      rope.high_frequency_factor = positive(fields, "high_freq_factor", 4);
      if (rope.high_frequency_factor <= rope.low_frequency_factor) {
        fields.refuse("high_freq_factor", "should be above low_freq_factor");
      }
      break;
    case nn::RopeScaling::yarn:
      rope.original_positions = original;
      rope.beta_fast = positive(fields, "beta_fast", 32);
      rope.beta_slow = positive(fields, "beta_slow", 1);
      if (fields.find("attention_factor") != nullptr) {
        rope.attention_factor = positive(fields, "attention_factor", 1);
      }
      rope.mscale = not_negative(fields, "mscale");
      rope.mscale_all_dim = not_negative(fields, "mscale_all_dim");
      rope.truncate = fields.flag("truncate", true);
      break;
  }
  rope.factor = at_least_one(fields, "factor");
}

}  // namespace

nn::RopeConfig read_rope(const Json& json, const std::string& source, int64_t positions) {
  JsonFields fields(json, source);
  nn::RopeConfig rope;
  rope.scaling = read_scaling(fields);
  rope.theta = positive(fields, "rope_theta", rope.theta);
  if (fields.real("partial_rotary_factor", 1) != 1) {
    fields.refuse("partial_rotary_factor", "all of a head is rotated here");
  }
  read_scaling_keys(fields, positions, rope);
  fields.refuse_unknown();
  return rope;
}

namespace {

bool same(const nn::RopeConfig& a, const nn::RopeConfig& b) {
  return a.theta == b.theta && a.scaling == b.scaling && a.factor == b.factor &&
         a.original_positions == b.original_positions &&
         a.low_frequency_factor == b.low_frequency_factor &&
         a.high_frequency_factor == b.high_frequency_factor && a.beta_fast == b.beta_fast &&
         a.beta_slow == b.beta_slow && a.attention_factor == b.attention_factor &&
         a.mscale == b.mscale && a.mscale_all_dim == b.mscale_all_dim && a.truncate == b.truncate;
}

// Transformers 5 has rope_parameters; 4 has rope_theta and rope_scaling. Some files have both.
nn::RopeConfig read_rope(JsonFields& fields, int64_t positions) {
  const auto theta = fields.real("rope_theta");
  if (theta && *theta <= 0) fields.refuse("rope_theta", "should be positive");
  const auto part = [&](const char* key) -> std::optional<nn::RopeConfig> {
    const Json* json = fields.find(key);
    if (json == nullptr) return std::nullopt;
    if (!json->is(Json::Kind::object)) fields.refuse(key, "should be an object");
    nn::RopeConfig rope = read_rope(*json, fmt::format("{}: {}", fields.source(), key), positions);
    const Json* own = json->find("rope_theta");
    if (theta && (own == nullptr || own->is(Json::Kind::null))) rope.theta = *theta;
    if (theta && rope.theta != *theta) {
      fields.refuse("rope_theta", fmt::format("contradicts {}, which has {}", key, rope.theta));
    }
    return rope;
  };
  const auto now = part("rope_parameters");
  const auto before = part("rope_scaling");
  if (now && before && !same(*now, *before))
    fields.refuse("rope_scaling", "contradicts rope_parameters");
  if (now) return *now;
  if (before) return *before;
  nn::RopeConfig plain;
  plain.theta = theta.value_or(plain.theta);
  return plain;
}

}  // namespace

Json rope_scaling_json(const nn::RopeConfig& rope) {
  Json json = Json::object().set("rope_type", name_of(rope.scaling));
  if (rope.scaling == nn::RopeScaling::none) return json;
  json.set("factor", rope.factor);
  if (rope.scaling == nn::RopeScaling::llama3) {
    json.set("low_freq_factor", rope.low_frequency_factor);
    json.set("high_freq_factor", rope.high_frequency_factor);
  }
  if (rope.scaling == nn::RopeScaling::yarn) {
    json.set("beta_fast", rope.beta_fast).set("beta_slow", rope.beta_slow);
    if (rope.attention_factor != 0) json.set("attention_factor", rope.attention_factor);
    if (rope.mscale != 0) json.set("mscale", rope.mscale);
    if (rope.mscale_all_dim != 0) json.set("mscale_all_dim", rope.mscale_all_dim);
    if (!rope.truncate) json.set("truncate", false);
  }
  const bool has_original =
      rope.scaling == nn::RopeScaling::llama3 || rope.scaling == nn::RopeScaling::yarn;
  if (has_original) json.set("original_max_position_embeddings", rope.original_positions);
  return json;
}

nn::LlamaConfig read_llama(JsonFields& fields) {
  nn::LlamaConfig model;
  model.vocab_size = size(fields, "vocab_size", 32000);
  model.seq_len = size(fields, "max_position_embeddings", 2048);
  model.hidden_size = size(fields, "hidden_size", 4096);
  model.intermediate_size = size(fields, "intermediate_size", 11008);
  model.num_layers = size(fields, "num_hidden_layers", 32);
  model.num_heads = size(fields, "num_attention_heads", 32);
  model.num_key_value_heads = size(fields, "num_key_value_heads", model.num_heads);
  model.head_size =
      size(fields, "head_dim", std::max<int64_t>(1, model.hidden_size / model.num_heads));
  if (fields.find("head_dim") == nullptr && model.hidden_size % model.num_heads != 0) {
    fields.refuse("num_attention_heads",
                  fmt::format("does not divide hidden_size {}", model.hidden_size));
  }
  if (model.num_heads % model.num_key_value_heads != 0) {
    fields.refuse("num_key_value_heads",
                  fmt::format("does not divide num_attention_heads {}", model.num_heads));
  }
  if (model.head_size % 2 != 0) {
    fields.refuse("head_dim",
                  fmt::format("rotary positions turn pairs, a head of {} is odd", model.head_size));
  }
  model.rms_norm_epsilon = positive(fields, "rms_norm_eps", 1e-6);
  model.rope = read_rope(fields, model.seq_len);
  if (fields.real("partial_rotary_factor", 1) != 1) {
    fields.refuse("partial_rotary_factor", "all of a head is rotated here");
  }
  model.tie_embeddings = fields.flag("tie_word_embeddings", false);
  model.attention_bias = fields.flag("attention_bias", false);
  model.mlp_bias = fields.flag("mlp_bias", false);
  if (fields.text("hidden_act").value_or("silu") != "silu") {
    fields.refuse("hidden_act", "is not computed here; silu is");
  }
  fields.require_off("attention_dropout",
                     "dropout of the attention weights alone is not supported; set it to 0");
  constexpr const char* kOther[] = {"pretraining_tp"};
  fields.ignore(kOther);
  return model;
}

// rope_parameters is for transformers 5, rope_theta and rope_scaling for 4.
Json llama_json(const nn::LlamaConfig& model) {
  require(model.rope.layout == RopeLayout::half_split,
          "config.json: cannot say that rotary pairs are interleaved; this model has them");
  require(model.window == 0,
          "config.json: cannot say that Llama attends within a window; this model has one of {}",
          model.window);
  const Json scaling = rope_scaling_json(model.rope);
  return Json::object()
      .set("architectures", Json::array().push("LlamaForCausalLM"))
      .set("model_type", "llama")
      .set("vocab_size", model.vocab_size)
      .set("max_position_embeddings", model.seq_len)
      .set("hidden_size", model.hidden_size)
      .set("intermediate_size", model.intermediate_size)
      .set("num_hidden_layers", model.num_layers)
      .set("num_attention_heads", model.num_heads)
      .set("num_key_value_heads", model.num_key_value_heads)
      .set("head_dim", model.head())
      .set("hidden_act", "silu")
      .set("rms_norm_eps", model.rms_norm_epsilon)
      .set("initializer_range", model.init_std)
      .set("attention_bias", model.attention_bias)
      .set("attention_dropout", 0.0)
      .set("mlp_bias", model.mlp_bias)
      .set("rope_parameters", Json(scaling).set("rope_theta", model.rope.theta))
      .set("rope_theta", model.rope.theta)
      .set("rope_scaling", model.rope.scaling == nn::RopeScaling::none ? Json() : scaling)
      .set("tie_word_embeddings", model.tie_embeddings);
}

}  // namespace faultline
