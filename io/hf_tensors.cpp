#include "io/hf_tensors.h"

#include <algorithm>
#include <set>

#include "autograd/functional.h"
#include "core/error.h"
#include "io/file_bytes.h"
#include "io/finite.h"

namespace faultline {
namespace {

constexpr std::string_view kGpt2Prefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";

std::vector<HfTensorName> layer_tensors(const nn::Gpt2Config& config, int64_t layer) {
  const int64_t C = config.hidden_size;
  const std::string block = fmt::format("h.{}.", layer);
  std::vector<HfTensorName> names;
  const auto norm = [&](const char* name) {
    for (const char* part : {".weight", ".bias"}) {
      names.push_back({block + name + part, block + name + part, {C}});
    }
  };
  const auto linear = [&](const char* file, const char* own, int64_t in, int64_t out) {
    names.push_back(
        {block + file + ".weight", block + own + ".weight", {in, out}, HfLayout::transposed});
    names.push_back({block + file + ".bias", block + own + ".bias", {out}});
  };
  norm("ln_1");
  linear("attn.c_attn", "attn.qkv", C, 3 * C);
  linear("attn.c_proj", "attn.proj", C, C);
  norm("ln_2");
  linear("mlp.c_fc", "mlp.fc", C, 4 * C);
  linear("mlp.c_proj", "mlp.proj", 4 * C, C);
  return names;
}

std::vector<HfTensorName> outer_tensors(const nn::Gpt2Config& config) {
  const int64_t C = config.hidden_size;
  return {{"wte.weight", "wte.weight", {config.vocab_size, C}},
          {"wpe.weight", "wpe.weight", {config.seq_len, C}},
          {"ln_f.weight", "ln_f.weight", {C}},
          {"ln_f.bias", "ln_f.bias", {C}}};
}

std::vector<HfTensorName> layer_tensors(const nn::LlamaConfig& config, int64_t layer) {
  const int64_t C = config.hidden_size;
  const int64_t I = config.intermediate_size;
  const int64_t queries = config.num_heads * config.head();
  const int64_t keys = config.num_key_value_heads * config.head();
  const std::string block = fmt::format("layers.{}.", layer);
  std::vector<HfTensorName> names;
  const auto add = [&](const std::string& name, const Shape& shape) {
    names.push_back({"model." + block + name, block + name, shape});
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  };
  add("input_layernorm.weight", {C});
  linear("self_attn.q_proj", C, queries, config.attention_bias);
  linear("self_attn.k_proj", C, keys, config.attention_bias);
  linear("self_attn.v_proj", C, keys, config.attention_bias);
  linear("self_attn.o_proj", queries, C, config.attention_bias);
  add("post_attention_layernorm.weight", {C});
  linear("mlp.gate_proj", C, I, config.mlp_bias);
  linear("mlp.up_proj", C, I, config.mlp_bias);
  linear("mlp.down_proj", I, C, config.mlp_bias);
  return names;
}

std::vector<HfTensorName> outer_tensors(const nn::LlamaConfig& config) {
  const Shape table{config.vocab_size, config.hidden_size};
  std::vector<HfTensorName> names = {{"model.embed_tokens.weight", "embed_tokens.weight", table},
                                     {"model.norm.weight", "norm.weight", {config.hidden_size}}};
  if (!config.tie_embeddings) names.push_back({kHead, kHead, table});
  return names;
}

bool is_tied(const nn::Gpt2Config&) { return true; }
bool is_tied(const nn::LlamaConfig& config) { return config.tie_embeddings; }

// The embedding that a tied head shares.
const char* embedding(const nn::Gpt2Config&) { return "wte.weight"; }
const char* embedding(const nn::LlamaConfig&) { return "embed_tokens.weight"; }

// What old versions stored beside the weights.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

std::string_view dtype_text(DType dtype) {
  return dtype == DType::f16 ? "F16" : dtype == DType::bf16 ? "BF16" : "F32";
}

// Takes the tensors of a folder one by one, and knows which are left.
class Collector {
 public:
  Collector(const HfConfig& config, const HfTensors& tensors, const std::string& source)
      : config_(config), tensors_(tensors), source_(source) {
    const bool gpt2 = std::holds_alternative<nn::Gpt2Config>(config.model);
    const auto prefixed = [](const auto& item) { return item.first.starts_with(kGpt2Prefix); };
    if (gpt2 && std::any_of(tensors.begin(), tensors.end(), prefixed)) prefix_ = kGpt2Prefix;
  }

  State collect() {
    for (const HfTensorName& name : hf_outer_tensors(config_)) take(name);
    // A missing layer ends the loop, so its length is bounded by what the files hold.
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      for (const HfTensorName& name : hf_layer_tensors(config_, layer)) take(name);
    }
    check_tied_head();
    check_nothing_left();
    check_dtype();
    return std::move(state_);
  }

 private:
  void take(const HfTensorName& name) {
    const std::string key = prefix_ + name.file;
    const auto found = tensors_.find(key);
    require(found != tensors_.end(),
            "{}: there is no tensor {} {}, which config.json asks for ({}, {} {})", source_,
            json_quoted(key), to_string(name.shape), config_.architecture(), config_.layers_key(),
            config_.num_layers());
    const auto& [tensor, file] = found->second;
    check_number(key, found->second);
    require(tensor.shape() == name.shape, "{}: tensor {} is {}, config.json makes it {}", file,
            json_quoted(key), to_string(tensor.shape()), to_string(name.shape));
    require_finite(tensor, file, key);
    taken_.insert(key);
    dtypes_.insert(tensor.dtype());
    state_.tensors[name.own] =
        name.layout == HfLayout::transposed ? transpose(tensor, 0, 1) : tensor;
  }

  void check_number(const std::string& key, const HfTensor& found) const {
    const DType dtype = found.tensor.dtype();
    require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
            "{}: tensor {} is {}; weights are F32, F16 or BF16", found.file, json_quoted(key),
            faultline::name(dtype));
  }

  // A file may hold the head of a tied model too, if it is the embedding.
  void check_tied_head() {
    const auto found = tensors_.find(kHead);
    const bool tied = std::visit([](const auto& model) { return is_tied(model); }, config_.model);
    if (!tied || found == tensors_.end()) return;
    const char* own = std::visit([](const auto& model) { return embedding(model); }, config_.model);
    const Tensor& table = state_.tensor(own);
    const Tensor& head = found->second.tensor;
    const auto equal = [&] {
      if (head.dtype() != table.dtype() || head.shape() != table.shape()) return false;
      const FileBytes a(head);
      const FileBytes b(table);
      return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
    };
    require(equal(),
            "{}: tensor \"{}\" differs from {}, but config.json ties them "
            "(tie_word_embeddings)",
            found->second.file, kHead, own);
    taken_.insert(kHead);
  }

  void check_nothing_left() const {
    for (const auto& [key, found] : tensors_) {
      if (taken_.contains(key) || is_buffer(key)) continue;
      fail("{}: tensor {} {} has no place in the model of config.json ({}, {} {})", found.file,
           json_quoted(key), to_string(found.tensor.shape()), config_.architecture(),
           config_.layers_key(), config_.num_layers());
    }
  }

  void check_dtype() const {
    if (!config_.dtype || dtypes_.contains(*config_.dtype)) return;
    fail("{}: config.json says that the weights are {}, but no tensor is; the first is {}", source_,
         dtype_text(*config_.dtype), dtype_text(*dtypes_.begin()));
  }

  const HfConfig& config_;
  const HfTensors& tensors_;
  const std::string& source_;
  std::string prefix_;
  State state_;
  std::set<std::string> taken_;
  std::set<DType> dtypes_;
};

}  // namespace

std::vector<HfTensorName> hf_layer_tensors(const HfConfig& config, int64_t layer) {
  return std::visit([&](const auto& model) { return layer_tensors(model, layer); }, config.model);
}

std::vector<HfTensorName> hf_outer_tensors(const HfConfig& config) {
  return std::visit([](const auto& model) { return outer_tensors(model); }, config.model);
}

double hf_parameter_count(const HfConfig& config) {
  const auto total = [](const std::vector<HfTensorName>& names) {
    double sum = 0;
    for (const HfTensorName& name : names) {
      double product = 1;
      for (const int64_t size : name.shape) product *= static_cast<double>(size);
      sum += product;
    }
    return sum;
  };
  return total(hf_outer_tensors(config)) +
         total(hf_layer_tensors(config, 0)) * static_cast<double>(config.num_layers());
}

State model_state(const HfConfig& config, const HfTensors& tensors, const std::string& source) {
  return Collector(config, tensors, source).collect();
}

std::map<std::string, Tensor> hf_tensors(const HfConfig& config, const State& state) {
  const bool gpt2 = std::holds_alternative<nn::Gpt2Config>(config.model);
  const std::string prefix(gpt2 ? kGpt2Prefix : "");
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const HfTensorName& name) {
    const Tensor& own = state.tensor(name.own);
    tensors[prefix + name.file] = name.layout == HfLayout::transposed ? transpose(own, 0, 1) : own;
  };
  for (const HfTensorName& name : hf_outer_tensors(config)) add(name);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    for (const HfTensorName& name : hf_layer_tensors(config, layer)) add(name);
  }
  require(tensors.size() == state.tensors.size(),
          "model: it has {} tensors, its configuration has {}; merge adapters before writing it",
          state.tensors.size(), tensors.size());
  return tensors;
}

}  // namespace faultline
