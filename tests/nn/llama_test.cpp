#include "nn/llama.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "autograd/functional.h"
#include "io/safetensors.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr double kEps = 0x1p-23;

// ---- against transformers -----------------------------------------------------------------------

// The shape of all models of tests/golden/make_llama_golden.py.
LlamaConfig small() {
  LlamaConfig config;
  config.vocab_size = 24;
  config.seq_len = 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.hidden_size = 16;
  config.head_size = 8;
  config.intermediate_size = 20;
  config.rope.theta = 100;
  return config;
}

std::map<std::string, LlamaConfig> golden_models() {
  LlamaConfig gqa_llama3 = small();
  gqa_llama3.num_key_value_heads = 2;
  gqa_llama3.tie_embeddings = true;
  gqa_llama3.attention_bias = true;
  gqa_llama3.mlp_bias = true;
  gqa_llama3.rope.scaling = RopeScaling::llama3;
  gqa_llama3.rope.factor = 4;
  gqa_llama3.rope.original_positions = 16;
  LlamaConfig mqa_yarn = small();
  mqa_yarn.num_key_value_heads = 1;
  mqa_yarn.rope.scaling = RopeScaling::yarn;
  mqa_yarn.rope.factor = 4;
  mqa_yarn.rope.original_positions = 16;
  LlamaConfig gqa_dynamic = small();
  gqa_dynamic.num_key_value_heads = 2;
  gqa_dynamic.seq_len = 12;
  gqa_dynamic.rope.scaling = RopeScaling::dynamic_ntk;
  gqa_dynamic.rope.factor = 2;
  gqa_dynamic.rope.original_positions = 12;
  LlamaConfig mqa_linear = small();
  mqa_linear.num_key_value_heads = 1;
  mqa_linear.tie_embeddings = true;
  mqa_linear.rope.scaling = RopeScaling::linear;
  mqa_linear.rope.factor = 3;
  return {{"mha", small()},
          {"gqa_llama3", gqa_llama3},
          {"mqa_yarn", mqa_yarn},
          {"gqa_dynamic", gqa_dynamic},
          {"mqa_linear_padded", mqa_linear}};
}

// The tensors of one model.
class Golden {
 public:
  explicit Golden(std::string model) : model_(std::move(model)) {
    const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
    file_ = read_safetensors(std::string(root != nullptr ? root : ".") +
                             "/tests/golden/llama_golden.safetensors");
  }
  const Tensor& at(const std::string& name) const { return file_.tensors.at(model_ + "." + name); }
  State initial() const {
    const std::string prefix = model_ + ".init.";
    State state;
    for (const auto& [name, tensor] : file_.tensors) {
      if (name.starts_with(prefix)) state.tensors[name.substr(prefix.size())] = tensor;
    }
    return state;
  }

 private:
  std::string model_;
  Safetensors file_;
};

double largest(const std::vector<double>& values) {
  double found = 0;
  for (const double value : values) found = std::max(found, std::abs(value));
  return found;
}

// As for GPT-2 (tests/nn/gpt2_test.cpp): a dozen products in a row, each over up to 32 terms, whose
// rounding grows like the root of their number (6); backward twice that. transformers takes norms,
// angles and softmax in f32, so the golden is as far from the truth as we are.
constexpr double kForward = 2 * 12 * 6 * kEps;
constexpr double kBackward = 2 * kForward;

TEST(LlamaGolden, LossLogitsAndEveryGradientAreThoseOfTransformers) {
  for (const auto& [name, config] : golden_models()) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    Llama model(config, 1);
    model.load(golden.initial());
    Mask mask;
    mask.key_valid = cast(golden.at("key_valid"), DType::boolean);
    const Tensor logits = model.forward(
        {.tokens_BT = golden.at("tokens"), .mask = mask, .positions_BT = golden.at("positions")});
    const Tensor valid = golden.at("key_valid");
    const auto count = sum(valid).item<double>();
    const Tensor loss = language_model_loss(logits, golden.at("labels"));
    backward(loss * (1 / count));

    const double expected_loss = golden.at("loss").item<double>();
    EXPECT_NEAR(loss.item<double>() / count, expected_loss, 8 * kEps * expected_loss);
    std::vector<double> found = logits.to_vector<double>();
    const std::vector<double> counts = valid.to_vector<double>();
    const auto V = static_cast<size_t>(config.vocab_size);
    for (size_t i = 0; i < found.size(); ++i) found[i] *= counts[i / V];
    const std::vector<double> expected = golden.at("logits").to_vector<double>();
    EXPECT_TRUE(test::close(found, expected, {.absolute = kForward * largest(expected)}));
    for (const Parameter* parameter : model.parameters()) {
      const auto gradient = golden.at("grad." + parameter->name()).to_vector<double>();
      // Softmax does not feel what a bias adds to every key alike, but rotary positions make it
      // feel the turned bias: even k_proj.bias has a gradient here.
      ASSERT_GT(largest(gradient), 0) << parameter->name();
      EXPECT_TRUE(test::close(parameter->gradient().to_vector<double>(), gradient,
                              {.absolute = kBackward * largest(gradient)}))
          << parameter->name();
    }
  }
}

// ---- positions and caches -----------------------------------------------------------------------

// Keeps everything, by concatenation.
class GrowingCache : public KvCache {
 public:
  int64_t length() const override { return length_; }
  All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) override {
    if (layer == 0) length_ += k_BGTD.size(2);
    const auto [slot, is_new] = layers_.try_emplace(layer, All{k_BGTD, v_BGTD});
    All& all = slot->second;
    if (!is_new) {
      const Tensor keys[] = {all.k_BGKD, k_BGTD};
      const Tensor values[] = {all.v_BGKD, v_BGTD};
      all = {cat(keys, 2), cat(values, 2)};
    }
    return all;
  }

 private:
  int64_t length_ = 0;
  std::map<int64_t, All> layers_;
};

Tensor tokens_of(const Golden& golden, int64_t begin, int64_t end) {
  return contiguous(slice(golden.at("tokens"), 1, begin, end));
}

// One position at a time after a prompt of seven; the same terms in the same order, but products of
// other shapes may round otherwise.
TEST(Llama, WithACacheGivesTheLogitsOfAFullForward) {
  const NoGrad off;
  for (const auto& [name, config] : golden_models()) {
    if (config.rope.scaling == RopeScaling::dynamic_ntk) continue;
    SCOPED_TRACE(name);
    const Golden golden(name);
    Llama model(config, 1);
    model.load(golden.initial());
    const Tensor tokens = golden.at("tokens");
    const Tensor full = model(tokens, {});
    GrowingCache cache;
    std::vector<Tensor> parts;
    for (int64_t begin = 0; begin < 20;) {
      const int64_t end = begin == 0 ? 7 : begin + 1;
      parts.push_back(model.forward({.tokens_BT = tokens_of(golden, begin, end),
                                     .mask = {.query_offset = cache.length()},
                                     .cache = &cache}));
      begin = end;
    }
    Tensor logits = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) {
      const Tensor both[] = {logits, parts[i]};
      logits = cat(both, 1);
    }
    const double scale = largest(full.to_vector<double>());
    EXPECT_TRUE(test::close(logits, full, {.absolute = kForward * scale}));
  }
}

// A cached key keeps the angle that it was given; dynamic_ntk would change it.
TEST(Llama, RefusesACacheThatDynamicNtkWouldOutgrow) {
  const NoGrad off;
  const Golden golden("gqa_dynamic");
  Llama model(golden_models().at("gqa_dynamic"), 1);  // 12 original positions
  GrowingCache cache;
  const ModelInput input{.tokens_BT = tokens_of(golden, 0, 12), .mask = {}, .cache = &cache};
  model.forward(input);
  try {
    model.forward(
        {.tokens_BT = tokens_of(golden, 12, 13), .mask = {.query_offset = 12}, .cache = &cache});
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("dynamic_ntk"), std::string::npos) << error.what();
  }
}

// Rows of 20, the second padded by six on the left: its logits are those of its 14 tokens alone,
// whatever the padding holds.
TEST(Llama, LeftPaddingChangesNothing) {
  const NoGrad off;
  const Golden golden("mqa_linear_padded");
  Llama model(golden_models().at("mqa_linear_padded"), 1);
  model.load(golden.initial());
  const Tensor alone = model(contiguous(slice(tokens_of(golden, 6, 20), 0, 1, 2)), {});
  Mask mask;
  mask.key_valid = cast(golden.at("key_valid"), DType::boolean);
  const Tensor padded = model.forward(
      {.tokens_BT = golden.at("tokens"), .mask = mask, .positions_BT = golden.at("positions")});
  const double scale = largest(alone.to_vector<double>());
  EXPECT_TRUE(test::close(contiguous(slice(slice(padded, 0, 1, 2), 1, 6, 20)), alone,
                          {.absolute = kForward * scale}));
}

TEST(Llama, TakesMorePositionsThanItWasMadeFor) {
  const NoGrad off;
  LlamaConfig config = small();
  config.seq_len = 4;
  EXPECT_TRUE(all_finite(Llama(config, 1)(zeros({1, 9}, DType::i32), {})));
}

TEST(Llama, RefusesPositionsOfAnotherShapeThanTheTokens) {
  Llama model(small(), 1);
  EXPECT_THROW(model.forward({.tokens_BT = zeros({2, 3}, DType::i32),
                              .mask = {},
                              .positions_BT = zeros({1, 3}, DType::i32)}),
               InvalidArgument);
}

// ---- construction -------------------------------------------------------------------------------

TEST(Llama, HasTheParametersOfHuggingFaceFiles) {
  LlamaConfig config = small();
  config.num_layers = 1;
  config.num_key_value_heads = 2;
  Llama model(config, 1);
  std::map<std::string, Shape> found;
  for (const Parameter* parameter : model.parameters()) {
    found[parameter->name()] = parameter->value().shape();
  }
  const std::map<std::string, Shape> expected{
      {"embed_tokens.weight", {24, 16}},
      {"layers.0.input_layernorm.weight", {16}},
      {"layers.0.self_attn.q_proj.weight", {32, 16}},
      {"layers.0.self_attn.k_proj.weight", {16, 16}},
      {"layers.0.self_attn.v_proj.weight", {16, 16}},
      {"layers.0.self_attn.o_proj.weight", {16, 32}},
      {"layers.0.post_attention_layernorm.weight", {16}},
      {"layers.0.mlp.gate_proj.weight", {20, 16}},
      {"layers.0.mlp.up_proj.weight", {20, 16}},
      {"layers.0.mlp.down_proj.weight", {16, 20}},
      {"norm.weight", {16}},
      {"lm_head.weight", {24, 16}},
  };
  EXPECT_EQ(found, expected);
  const ModelShape shape = model.model_shape();
  EXPECT_EQ(shape.num_key_value_heads, 2);
  EXPECT_EQ(shape.head_size, 8);
  config.tie_embeddings = true;
  EXPECT_EQ(Llama(config, 1).parameter_count(), model.parameter_count() - 24 * 16);
}

// n samples of a normal distribution: their deviation is off by less than 4 / sqrt(2 n) but once in
// 16,000 times, and the seed is fixed.
TEST(Llama, BeginsWithTheDeviationAsked) {
  LlamaConfig config = small();
  config.vocab_size = 512;
  config.init_std = 0.03;
  Llama model(config, 7);
  for (const Parameter* parameter : model.parameters()) {
    const std::vector<double> values = parameter->value().to_vector<double>();
    if (parameter->decay() == Decay::no) {
      EXPECT_EQ(values, std::vector<double>(values.size(), 1)) << parameter->name();
      continue;
    }
    double squares = 0;
    for (const double value : values) squares += value * value;
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(std::sqrt(squares / n) / 0.03, 1, 4 / std::sqrt(2 * n)) << parameter->name();
  }
}

TEST(Llama, DropsOnlyInTraining) {
  LlamaConfig config = small();
  config.dropout = 0.5;
  Llama model(config, 1);
  LlamaConfig without = config;
  without.dropout = 0;
  const Tensor tokens = arange(12, 0, 1, DType::i32);
  const Tensor row = reshape(tokens, {1, 12});
  model.dropout_key().set(1, 0);
  const Tensor first = model(row, {});
  EXPECT_TRUE(test::same_bits(model(row, {}), first));
  model.dropout_key().set(2, 0);
  EXPECT_FALSE(test::same_bits(model(row, {}), first));
  const EvaluationMode evaluation(model);
  EXPECT_TRUE(test::same_bits(model(row, {}), Llama(without, 1)(row, {})));
}

void expect_refusal(const LlamaConfig& config, const std::string& key) {
  try {
    Llama(config, 1);
    ADD_FAILURE() << "no error about " << key;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  }
}

TEST(Llama, RefusesAContradictoryConfigurationNamingTheKey) {
  const auto with = [](auto member, auto value) {
    LlamaConfig config = small();
    config.*member = value;
    return config;
  };
  expect_refusal(with(&LlamaConfig::vocab_size, 0), "vocab_size");
  expect_refusal(with(&LlamaConfig::intermediate_size, 0), "intermediate_size");
  expect_refusal(with(&LlamaConfig::num_key_value_heads, 3), "num_key_value_heads");
  expect_refusal(with(&LlamaConfig::num_key_value_heads, 8), "num_key_value_heads");
  expect_refusal(with(&LlamaConfig::head_size, 7), "head_size");
  expect_refusal(with(&LlamaConfig::head_size, -2), "head_size");
  expect_refusal(with(&LlamaConfig::rms_norm_epsilon, 0.0), "rms_norm_epsilon");
  expect_refusal(with(&LlamaConfig::dropout, 1.0), "dropout");
  LlamaConfig config = small();
  config.head_size = 0;
  config.hidden_size = 18;
  expect_refusal(config, "num_heads");
  config.hidden_size = 12;  // heads of 3
  expect_refusal(config, "hidden_size / num_heads");
  config = small();
  config.rope.theta = 0;
  expect_refusal(config, "theta");
}

}  // namespace
}  // namespace faultline::nn
