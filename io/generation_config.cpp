#include "io/generation_config.h"

#include <filesystem>

#include "core/error.h"
#include "io/folder_file.h"
#include "io/mapped_file.h"

namespace faultline {
namespace {

// Ids as 32 bits hold them; some files write -1 for none.
constexpr int64_t kMostId = INT32_MAX;

// Keys of other ways to generate, of where it stops, and of what is returned beside the text.
constexpr const char* kIgnored[] = {"max_length",
                                    "max_new_tokens",
                                    "min_length",
                                    "min_new_tokens",
                                    "early_stopping",
                                    "max_time",
                                    "stop_strings",
                                    "use_cache",
                                    "cache_implementation",
                                    "cache_config",
                                    "max_cache_len",
                                    "return_legacy_cache",
                                    "length_penalty",
                                    "num_return_sequences",
                                    "output_attentions",
                                    "output_hidden_states",
                                    "output_scores",
                                    "output_logits",
                                    "return_dict_in_generate",
                                    "decoder_start_token_id",
                                    "is_assistant",
                                    "num_assistant_tokens",
                                    "num_assistant_tokens_schedule",
                                    "assistant_confidence_threshold",
                                    "prompt_lookup_num_tokens",
                                    "max_matching_ngram_size",
                                    "assistant_early_exit",
                                    "assistant_lookbehind",
                                    "target_lookbehind",
                                    "assistant_ensemble_weight",
                                    "speculation_type",
                                    "use_mtp",
                                    "compile_config",
                                    "disable_compile",
                                    "continuous_batching_config",
                                    "low_memory",
                                    "prefill_chunk_size",
                                    "transformers_version",
                                    "remove_invalid_values",
                                    "encoder_no_repeat_ngram_size",
                                    "num_beam_groups",
                                    "diversity_penalty",
                                    "token_healing",
                                    "renormalize_logits",
                                    "chat_format"};

// Keys with the one value that changes no choice.
constexpr std::pair<const char*, double> kNeutral[] = {{"num_beams", 1},
                                                       {"repetition_penalty", 1},
                                                       {"encoder_repetition_penalty", 1},
                                                       {"no_repeat_ngram_size", 0},
                                                       {"min_p", 0},
                                                       {"top_h", 0},
                                                       {"typical_p", 1},
                                                       {"epsilon_cutoff", 0},
                                                       {"eta_cutoff", 0},
                                                       {"guidance_scale", 1},
                                                       {"penalty_alpha", 0}};

constexpr const char* kUnsupported[] = {"bad_words_ids",
                                        "force_words_ids",
                                        "constraints",
                                        "forced_bos_token_id",
                                        "suppress_tokens",
                                        "begin_suppress_tokens",
                                        "sequence_bias",
                                        "forced_eos_token_id",
                                        "dola_layers",
                                        "watermarking_config",
                                        "exponential_decay_length_penalty"};

std::optional<int64_t> id_within(std::optional<int64_t> id, int64_t vocab_size) {
  const bool outside = id && (*id < 0 || (vocab_size != 0 && *id >= vocab_size));
  return outside ? std::nullopt : id;
}

}  // namespace

SpecialTokens read_special_tokens(JsonFields& fields, int64_t vocab_size) {
  SpecialTokens tokens;
  const auto id = [&](std::string_view key) {
    return id_within(fields.integer(key, -1, kMostId), vocab_size);
  };
  tokens.begin = id("bos_token_id");
  tokens.padding = id("pad_token_id");
  const Json* ends = fields.find("eos_token_id");
  if (ends == nullptr || !ends->is(Json::Kind::array)) {
    if (const auto end = id("eos_token_id")) tokens.ends.push_back(*end);
    return tokens;
  }
  for (const Json& item : ends->items()) {
    if (!item.is(Json::Kind::integer) || item.integer() < -1 || item.integer() > kMostId) {
      fields.refuse("eos_token_id", "should be an id or a list of ids");
    }
    if (const auto end = id_within(item.integer(), vocab_size)) tokens.ends.push_back(*end);
  }
  return tokens;
}

void write_special_tokens(Json& object, const SpecialTokens& tokens) {
  const auto id = [](const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); };
  object.set("bos_token_id", id(tokens.begin));
  if (tokens.ends.size() > 1) {
    object.set("eos_token_id", Json::array_of(tokens.ends));
  } else {
    object.set("eos_token_id", tokens.ends.empty() ? Json() : Json(tokens.ends.front()));
  }
  object.set("pad_token_id", id(tokens.padding));
}

GenerationConfig read_generation_config(const std::string& folder, int64_t vocab_size) {
  const std::string path = path_inside(folder, "generation_config.json");
  if (!std::filesystem::exists(path)) return {};
  const Json json = Json::parse(map_file(path).text(), path);
  JsonFields fields(json, path);
  GenerationConfig config;
  config.tokens = read_special_tokens(fields, vocab_size);
  if (fields.find("do_sample") != nullptr) config.do_sample = fields.flag("do_sample", false);
  config.temperature = fields.real("temperature");
  if (config.temperature.value_or(0) < 0) fields.refuse("temperature", "should not be negative");
  config.top_k = fields.integer("top_k", 0, kMostId);
  config.top_p = fields.real("top_p");
  if (config.top_p && !(*config.top_p > 0 && *config.top_p <= 1)) {
    fields.refuse("top_p", "should be above 0 and at most 1");
  }
  for (const auto& [key, neutral] : kNeutral) {
    if (fields.real(key, neutral) != neutral)
      fields.refuse(key, "is not supported; remove the key");
  }
  for (const char* key : kUnsupported) fields.require_off(key, "is not supported; remove the key");
  fields.ignore(kIgnored);
  fields.refuse_unknown();
  return config;
}

Json generation_config_json(const GenerationConfig& config) {
  Json object = Json::object();
  write_special_tokens(object, config.tokens);
  if (config.do_sample) object.set("do_sample", *config.do_sample);
  if (config.temperature) object.set("temperature", *config.temperature);
  if (config.top_k) object.set("top_k", *config.top_k);
  if (config.top_p) object.set("top_p", *config.top_p);
  return object;
}

}  // namespace faultline
