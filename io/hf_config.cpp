#include "io/hf_config.h"

#include "core/error.h"
#include "io/hf_config_parts.h"
#include "io/json_fields.h"

namespace faultline {
namespace {

constexpr const char* kGpt2 = "GPT2LMHeadModel";
constexpr const char* kLlama = "LlamaForCausalLM";

// Keys that any configuration of transformers may have and that change nothing here: where it came
// from, what a call returns, how text is generated, heads for other tasks.
constexpr const char* kHarmless[] = {"transformers_version",
                                     "return_dict",
                                     "output_hidden_states",
                                     "output_attentions",
                                     "torchscript",
                                     "use_bfloat16",
                                     "tf_legacy_loss",
                                     "use_cache",
                                     "chunk_size_feed_forward",
                                     "is_decoder",
                                     "tie_encoder_decoder",
                                     "max_length",
                                     "min_length",
                                     "do_sample",
                                     "early_stopping",
                                     "num_beams",
                                     "num_beam_groups",
                                     "diversity_penalty",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "length_penalty",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "bad_words_ids",
                                     "num_return_sequences",
                                     "output_scores",
                                     "return_dict_in_generate",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "remove_invalid_values",
                                     "exponential_decay_length_penalty",
                                     "suppress_tokens",
                                     "begin_suppress_tokens",
                                     "finetuning_task",
                                     "id2label",
                                     "label2id",
                                     "num_labels",
                                     "tokenizer_class",
                                     "prefix",
                                     "sep_token_id",
                                     "decoder_start_token_id",
                                     "task_specific_params",
                                     "problem_type",
                                     "attn_implementation",
                                     "keys_to_ignore_at_inference",
                                     "gradient_checkpointing",
                                     "unk_token_id",
                                     "model_max_length",
                                     "n_special",
                                     "predict_special_tokens",
                                     "is_llama_config",
                                     "transformers.js_config",
                                     "unsloth_version",
                                     "unsloth_fixed"};

// Keys of the same family that change what is computed.
constexpr const char* kUnsupported[] = {"quantization_config",
                                        "pruned_heads",
                                        "is_encoder_decoder",
                                        "add_cross_attention",
                                        "cross_attention_hidden_size",
                                        "sliding_window",
                                        "use_sliding_window",
                                        "layer_types",
                                        "auto_map",
                                        "attn_logit_softcapping",
                                        "final_logit_softcapping"};

std::string architecture_of(JsonFields& fields) {
  std::string architecture;
  if (const Json* list = fields.find("architectures")) {
    const bool names_one = list->is(Json::Kind::array) && list->items().size() == 1 &&
                           list->items().front().is(Json::Kind::text);
    if (!names_one) fields.refuse("architectures", "should be a list of one name");
    architecture = list->items().front().text();
    if (architecture != kGpt2 && architecture != kLlama) {
      fields.refuse(
          "architectures",
          fmt::format("is no model that is known here; known are {} and {}", kGpt2, kLlama));
    }
  }
  const std::string type = fields.text("model_type").value_or("");
  const std::string meant = type == "gpt2" ? kGpt2 : type == "llama" ? kLlama : "";
  if (meant.empty() && (architecture.empty() || !type.empty())) {
    fields.refuse("model_type", "is no model that is known here; known are gpt2 and llama");
  }
  if (!meant.empty() && !architecture.empty() && meant != architecture) {
    fields.refuse("model_type",
                  fmt::format("contradicts architectures, which names {}", architecture));
  }
  return architecture.empty() ? meant : architecture;
}

std::optional<DType> dtype_of(JsonFields& fields, std::string_view key) {
  const auto text = fields.text(key);
  if (!text) return std::nullopt;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (*text == transformers_name(dtype)) return dtype;
  }
  fields.refuse(key, "should be float32, float16 or bfloat16");
}

std::optional<DType> read_dtype(JsonFields& fields) {
  const auto now = dtype_of(fields, "dtype");
  const auto before = dtype_of(fields, "torch_dtype");
  if (now && before && *now != *before) fields.refuse("torch_dtype", "contradicts dtype");
  return now ? now : before;
}

nn::Gpt2Config read_gpt2(JsonFields& fields) {
  nn::Gpt2Config model;
  model.vocab_size = size(fields, "vocab_size", 50257);
  model.seq_len = size(fields, "n_positions", 1024);
  model.hidden_size = size(fields, "n_embd", 768);
  model.num_layers = size(fields, "n_layer", 12);
  model.num_heads = size(fields, "n_head", 12);
  if (model.hidden_size % model.num_heads != 0) {
    fields.refuse("n_head", fmt::format("does not divide n_embd {}", model.hidden_size));
  }
  model.layer_norm_epsilon = positive(fields, "layer_norm_epsilon", 1e-5);
  if (size(fields, "n_inner", 4 * model.hidden_size) != 4 * model.hidden_size) {
    fields.refuse("n_inner", fmt::format("should be 4 times n_embd {}", model.hidden_size));
  }
  const std::string activation = fields.text("activation_function").value_or("gelu_new");
  if (activation == "gelu") {
    model.gelu = nn::Gelu::erf;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.refuse("activation_function",
                  "is not computed here; gelu_new, gelu_pytorch_tanh and gelu are");
  }
  model.dropout = probability(fields, "resid_pdrop", 0.1);
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    if (probability(fields, key, 0.1) != model.dropout) {
      fields.refuse(key,
                    fmt::format("differs from resid_pdrop {}; one dropout acts everywhere here",
                                model.dropout));
    }
  }
  fields.require_flag("tie_word_embeddings", true, "this model's head is its token embedding");
  fields.require_flag("scale_attn_weights", true, "attention divides by sqrt(head size) here");
  fields.require_flag("scale_attn_by_inverse_layer_idx", false, "no layer scales its scores here");
  fields.require_flag("reorder_and_upcast_attn", false, "is not supported; set it to false");
  constexpr const char* kOther[] = {"n_ctx",
                                    "summary_type",
                                    "summary_use_proj",
                                    "summary_activation",
                                    "summary_proj_to_labels",
                                    "summary_first_dropout"};
  fields.ignore(kOther);
  return model;
}

Json gpt2_json(const nn::Gpt2Config& model) {
  require(model.window == 0,
          "config.json: cannot say that GPT-2 attends within a window; this model has one of {}",
          model.window);
  return Json::object()
      .set("architectures", Json::array().push(kGpt2))
      .set("model_type", "gpt2")
      .set("vocab_size", model.vocab_size)
      .set("n_positions", model.seq_len)
      .set("n_embd", model.hidden_size)
      .set("n_layer", model.num_layers)
      .set("n_head", model.num_heads)
      .set("n_inner", Json())
      .set("activation_function", model.gelu == nn::Gelu::erf ? "gelu" : "gelu_new")
      .set("resid_pdrop", model.dropout)
      .set("embd_pdrop", model.dropout)
      .set("attn_pdrop", model.dropout)
      .set("layer_norm_epsilon", model.layer_norm_epsilon)
      .set("initializer_range", model.init_std)
      .set("scale_attn_weights", true)
      .set("tie_word_embeddings", true);
}

// What the model itself finds impossible, in its own words.
void check_model(const HfConfig& config, const std::string& source) {
  try {
    std::visit([](const auto& model) { model.check(); }, config.model);
  } catch (const InvalidArgument& error) {
    fail("{}: {}", source, error.what());
  }
}

}  // namespace

std::string_view transformers_name(DType dtype) {
  return dtype == DType::f16 ? "float16" : dtype == DType::bf16 ? "bfloat16" : "float32";
}

int64_t size(JsonFields& fields, std::string_view key, int64_t fallback) {
  return fields.integer(key, 1, kMostOfAnySize, fallback);
}

double positive(JsonFields& fields, std::string_view key, double fallback) {
  const double value = fields.real(key, fallback);
  if (value <= 0) fields.refuse(key, "should be positive");
  return value;
}

double probability(JsonFields& fields, std::string_view key, double fallback) {
  const double value = fields.real(key, fallback);
  if (value < 0 || value >= 1) fields.refuse(key, "should be in [0, 1)");
  return value;
}

const char* HfConfig::architecture() const {
  return std::holds_alternative<nn::Gpt2Config>(model) ? kGpt2 : kLlama;
}

const char* HfConfig::layers_key() const {
  return std::holds_alternative<nn::Gpt2Config>(model) ? "n_layer" : "num_hidden_layers";
}

int64_t HfConfig::num_layers() const {
  return std::visit([](const auto& config) { return config.num_layers; }, model);
}

int64_t HfConfig::vocab_size() const {
  return std::visit([](const auto& config) { return config.vocab_size; }, model);
}

bool is_hf_config(const Json& json) {
  return json.is(Json::Kind::object) &&
         (json.find("model_type") != nullptr || json.find("architectures") != nullptr);
}

HfConfig read_hf_config(const Json& json, const std::string& source) {
  JsonFields fields(json, source);
  HfConfig config;
  if (architecture_of(fields) == kGpt2) {
    config.model = read_gpt2(fields);
  } else {
    config.model = read_llama(fields);
  }
  std::visit([&](auto& model) { model.init_std = positive(fields, "initializer_range", 0.02); },
             config.model);
  config.tokens = read_special_tokens(fields, config.vocab_size());
  config.dtype = read_dtype(fields);
  check_model(config, source);
  for (const char* key : kUnsupported) fields.require_off(key, "is not supported here");
  fields.ignore(kHarmless);
  fields.refuse_unknown();
  return config;
}

Json hf_config_json(const HfConfig& config) {
  const auto* gpt2 = std::get_if<nn::Gpt2Config>(&config.model);
  Json json =
      gpt2 != nullptr ? gpt2_json(*gpt2) : llama_json(std::get<nn::LlamaConfig>(config.model));
  write_special_tokens(json, config.tokens);
  json.set("use_cache", true);
  if (config.dtype) json.set("dtype", transformers_name(*config.dtype));
  return json;
}

}  // namespace faultline
