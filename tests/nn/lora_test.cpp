#include "nn/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "autograd/functional.h"
#include "nn/gpt2.h"
#include "nn/lora_trace.h"
#include "nn/name_pattern.h"
#include "optim/optimizer.h"
#include "tests/nn/adapted_layer.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

using namespace test;

constexpr Gpt2Config kSmall{
    .vocab_size = 32, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16};

TEST(Lora, OutputIsThatOfF64) {
  Adapted own;
  const Values expected = plus(own.base(as_they_are), own.delta(as_they_are));
  const Values sizes = plus(own.base(magnitudes), own.delta(magnitudes));
  EXPECT_TRUE(faultline::test::within(own.layer(own.x).to_vector<double>(), expected,
                                      times(kTerms * kUnit, sizes)));
}

TEST(Lora, GradientsOfBothFactorsAndOfTheInputAreThoseOfF64) {
  Adapted own;
  set_requires_grad(own.x);
  const Tensor dy = normal({Adapted::kRows, Adapted::kOut}, 0, 1, 3, 4);
  backward(own.layer(own.x), dy);
  const auto formulas = [&](Adapted::View of) {
    const Values g = of(dy.to_vector<double>());
    const Values x = of(own.x.to_vector<double>());
    const Values a = of(own.a().value().to_vector<double>());
    const Values b = of(own.b().value().to_vector<double>());
    const Values w = of(own.weight());
    const double s = own.adapter().scale();
    // dB = s dy^T (x A^T), dA = s (dy B)^T x, dx = dy W + s (dy B) A.
    const Values h = product(x, a, Adapted::kIn);
    const Values gb = times(s, product(g, transposed(b, Adapted::kRank), Adapted::kOut));
    const Values db = times(
        s, product(transposed(g, Adapted::kOut), transposed(h, Adapted::kRank), Adapted::kRows));
    const Values da =
        product(transposed(gb, Adapted::kRank), transposed(x, Adapted::kIn), Adapted::kRows);
    const Values dx = plus(product(g, transposed(w, Adapted::kIn), Adapted::kOut),
                           product(gb, transposed(a, Adapted::kIn), Adapted::kRank));
    return std::map<std::string, Values>{{"A", da}, {"B", db}, {"x", dx}};
  };
  const auto expected = formulas(as_they_are);
  const auto sizes = formulas(magnitudes);
  const std::map<std::string, Tensor> found = {
      {"A", own.a().gradient()}, {"B", own.b().gradient()}, {"x", gradient(own.x)}};
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(faultline::test::within(tensor.to_vector<double>(), expected.at(name),
                                        times((kTerms + Adapted::kOut) * kUnit, sizes.at(name))))
        << name;
  }
}

double backward_of(Gpt2& model, const Tensor& tokens) {
  const Tensor loss = language_model_loss(model(tokens, {}), tokens);
  backward(loss);
  return loss.item<double>();
}

Tensor some_tokens() { return cast(uniform({3, 8}, 0, 32, 5, 1), DType::i32); }

TEST(Lora, BeginsAsItsBaseAndItsFirstStepMovesOnlyB) {
  Gpt2 base(kSmall, 3);
  Gpt2 model(kSmall, 3);
  add_lora(model, "own", {}, model.dropout_key(), 1);
  const Tensor tokens = some_tokens();
  EXPECT_TRUE(faultline::test::close(model(tokens, {}), base(tokens, {}), {}));
  backward_of(model, tokens);
  for (const Parameter* parameter : trainable_parameters(model)) {
    const Values gradient = parameter->gradient().to_vector<double>();
    const bool zero =
        std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; });
    EXPECT_EQ(zero, parameter->name().ends_with("lora_A.weight")) << parameter->name();
  }
}

// Two factors of zeros never move: dA has B in it, dB has A.
TEST(Lora, NeverMovesWhereBothFactorsAreZero) {
  Adapted own;
  const NoGrad off;
  fill_(own.a().value(), 0);
  fill_(own.b().value(), 0);
  const Scoped<bool> on(Context::current().gradients, true);
  backward(own.layer(own.x), ones({Adapted::kRows, Adapted::kOut}));
  for (Parameter* parameter : {&own.a(), &own.b()}) {
    EXPECT_TRUE(
        faultline::test::close(parameter->gradient(), zeros(parameter->value().shape()), {}));
  }
}

TEST(Lora, ScaleIsAlphaOverTheRankOrOverItsRoot) {
  EXPECT_EQ(LoraScaleSeam::standard({64, 16, LoraScaling::by_rank}), 0.25);
  EXPECT_EQ(LoraScaleSeam::standard({64, 16, LoraScaling::by_root_of_rank}), 2.0);
  EXPECT_EQ(LoraScaleSeam::standard({8, 16, LoraScaling::by_rank}), 2.0);
}

TEST(LoraInit, AIsUniformWithinOneOverTheRootOfTheInputs) {
  Linear layer(400, 10);
  add_lora(layer, "own", {.rank = 100}, DropoutKey(1), 7);
  const Values a = layer.adapters().front()->parameters()[0]->value().to_vector<double>();
  const double bound = 1.0 / 20;
  double largest = 0;
  double squares = 0;
  for (const double value : a) {
    largest = std::max(largest, std::abs(value));
    squares += value * value;
  }
  EXPECT_LE(largest, bound);
  // All but a share of 1e-3 of the range is reached by 40,000 draws, but for a chance of e^-40.
  EXPECT_GT(largest, 0.999 * bound);
  // Variance bound^2 / 3; six standard errors of it, sqrt(4 / 45) / (1 / 3) / 200 each.
  EXPECT_NEAR(squares / 40000 / (bound * bound / 3), 1, 6 * 0.8945 / 200);
}

TEST(LoraInit, HangsOnTheNameAndTheSeedAlone) {
  const auto first = [](uint64_t seed, std::vector<std::string> targets) {
    Gpt2 model(kSmall, 3);
    add_lora(model, "own", {.targets = {LoraTargets::Kind::suffixes, std::move(targets)}},
             model.dropout_key(), seed);
    return clone(model.state().tensor("h.1.mlp.fc.own.lora_A.weight"));
  };
  EXPECT_TRUE(faultline::test::same_bits(first(1, {"fc"}), first(1, {"qkv", "fc", "proj"})));
  EXPECT_FALSE(faultline::test::same_bits(first(1, {"fc"}), first(2, {"fc"})));
}

std::string chosen(Module& model, const LoraConfig& config) {
  std::string names;
  for (const LoraLayer& layer : lora_layers(model, config)) {
    names += fmt::format("{} {} {}\n", layer.name, layer.shape.rank, layer.shape.alpha);
  }
  return names;
}

// A model with an output head of its own.
class WithHead : public Module {
 public:
  WithHead() {
    add_child("up", up_);
    add_child("layers.1.up", inner_);
    add_child("lm_head", head_);
  }

 private:
  Linear up_{2, 2}, inner_{2, 2}, head_{2, 2};
};

TEST(LoraTargets, AreSuffixesOrAnExpressionOrAllButTheHead) {
  WithHead model;
  using Kind = LoraTargets::Kind;
  const auto of = [&](Kind kind, std::vector<std::string> texts) {
    return chosen(model, {.rank = 2, .alpha = 1, .targets = {kind, std::move(texts)}});
  };
  EXPECT_EQ(of(Kind::all_linear, {}), "up 2 1\nlayers.1.up 2 1\n");
  EXPECT_EQ(of(Kind::suffixes, {"up"}), "up 2 1\nlayers.1.up 2 1\n");
  EXPECT_EQ(of(Kind::suffixes, {"1.up", "lm_head"}), "layers.1.up 2 1\nlm_head 2 1\n");
  EXPECT_EQ(of(Kind::expression, {"up"}), "up 2 1\n");
  EXPECT_EQ(of(Kind::expression, {R"(layers\.\d+\..*|lm_head)"}), "layers.1.up 2 1\nlm_head 2 1\n");
  // "up" is no end of a word.
  EXPECT_THROW(of(Kind::suffixes, {"p"}), InvalidArgument);
  EXPECT_THROW(of(Kind::suffixes, {"up", "down"}), InvalidArgument);
  EXPECT_THROW(of(Kind::expression, {"u"}), InvalidArgument);
  EXPECT_THROW(of(Kind::expression, {"(up"}), InvalidArgument);
}

TEST(LoraTargets, TakeRankAndAlphaOfTheFirstPatternThatMatches) {
  WithHead model;
  EXPECT_EQ(chosen(model, {.rank = 8,
                           .alpha = 16,
                           .rank_pattern = {{"1.up", 2}, {"up", 3}},
                           .alpha_pattern = {{R"(layers\.\d\.up)", 5}}}),
            "up 3 16\nlayers.1.up 2 5\n");
}

TEST(LoraTargets, AHostileExpressionEnds) {
  const NamePattern pattern = NamePattern::whole("(a*)*(a*)*b");
  EXPECT_FALSE(pattern.matches(std::string(300, 'a')));
  EXPECT_THROW(NamePattern::whole(std::string(1001, '(')), InvalidArgument);
}

TEST(LoraConfig, RefusesWhatHasNoEffectOrNoMeaning) {
  for (const LoraConfig& wrong :
       {LoraConfig{.rank = 0}, LoraConfig{.rank = -1}, LoraConfig{.alpha = 0},
        LoraConfig{.alpha = std::nan("")}, LoraConfig{.dropout = 1}, LoraConfig{.dropout = -0.1},
        LoraConfig{.targets = {LoraTargets::Kind::suffixes, {}}},
        LoraConfig{.rank_pattern = {{"up", 0}}}, LoraConfig{.alpha_pattern = {{"up", 0}}},
        LoraConfig{.rank_pattern = {{"(", 1}}}}) {
    EXPECT_THROW(wrong.check(), InvalidArgument);
  }
}

TEST(Lora, RefusesANameThatIsTakenAndLeavesTheModel) {
  Gpt2 model(kSmall, 3);
  add_lora(model, "own", {.targets = {LoraTargets::Kind::suffixes, {"fc"}}}, model.dropout_key(),
           1);
  const size_t before = model.parameters().size();
  EXPECT_THROW(add_lora(model, "own", {}, model.dropout_key(), 1), InvalidArgument);
  for (const char* name : {"", "a.b", "weight", "bias", "a b"}) {
    EXPECT_THROW(add_lora(model, name, {}, model.dropout_key(), 1), InvalidArgument) << name;
  }
  EXPECT_EQ(model.parameters().size(), before);
}

TEST(Lora, SeveralAdaptersAddUpAndEachCanBeOff) {
  Adapted own;
  add_lora(own.layer, "other", {.rank = 2, .alpha = 5}, own.key, 2);
  {
    const NoGrad off;
    Parameter& b = *own.layer.adapters()[1]->parameters()[1];
    copy_(b.value(), normal(b.value().shape(), 0, 0.3, 3, 9));
  }
  const auto with = [&](const std::vector<std::string>& names) {
    activate(own.layer, names);
    return own.layer(own.x).to_vector<double>();
  };
  const Values none = with({});
  Linear plain(Adapted::kIn, Adapted::kOut, Bias::no);
  plain.weight().set_value(own.layer.weight().value().detach());
  EXPECT_EQ(none, plain(own.x).to_vector<double>());
  const Values first = with({"own"});
  const Values second = with({"other"});
  const Values both = with({"other", "own"});
  EXPECT_NE(first, none);
  EXPECT_NE(second, none);
  const Values sum = plus(plus(first, second), times(-1, none));
  // Three sums of about the same size, each rounded once.
  const Values sizes = plus(magnitudes(first), plus(magnitudes(second), magnitudes(none)));
  EXPECT_TRUE(faultline::test::within(both, sum, times(4 * kUnit, sizes)));
  EXPECT_THROW(activate(own.layer, {"nobody"}), InvalidArgument);
}

// Rounded to the base's type twice: W x, and the sum with the adapter, which is in f32. Half an ulp
// is 2^-8 of a number in bf16 and 2^-11 in f16.
TEST(Lora, StaysInF32OverABaseOf16Bits) {
  for (const auto& [dtype, half] :
       {std::pair(DType::bf16, 0x1p-8), std::pair(DType::f16, 0x1p-11)}) {
    Adapted own;
    own.layer.weight().set_value(cast(own.layer.weight().value().detach(), dtype));
    own.x = cast(own.x, dtype);
    const Tensor y = own.layer(own.x);
    EXPECT_EQ(y.dtype(), dtype);
    const Values base = own.base(as_they_are);
    const Values expected = plus(base, own.delta(as_they_are));
    const Values sizes = plus(own.base(magnitudes), own.delta(magnitudes));
    const Values rounding = plus(magnitudes(base), magnitudes(expected));
    EXPECT_TRUE(faultline::test::within(
        y.to_vector<double>(), expected,
        plus(times(2 * kTerms * kUnit, sizes), times(1.01 * half, rounding))));
    backward(y, ones(y.shape(), dtype));
    EXPECT_EQ(own.a().gradient().dtype(), DType::f32);
    EXPECT_FALSE(own.layer.weight().gradient().defined());
  }
}

TEST(LoraDropout, ActsOnTheAdaptersInputWhileTraining) {
  Adapted own({.rank = Adapted::kRank, .alpha = 3, .dropout = 0.5});
  own.key.set(4, 0);
  const Tensor dropped = dropout(own.x, own.key.tensor(), 0.5, dropout_number("own.lora_dropout"));
  const auto expected = [&](const Tensor& x) {
    Tensor base = linear(own.x, own.layer.weight().value());
    Tensor h = linear(x, own.a().value()) * own.adapter().scale();
    return base + linear(h, own.b().value());
  };
  EXPECT_TRUE(faultline::test::same_bits(own.layer(own.x), expected(dropped)));
  own.layer.set_training(false);
  EXPECT_TRUE(faultline::test::same_bits(own.layer(own.x), expected(own.x)));
}

TEST(LoraDropout, AnAdapterTakesTheModeOfItsLayer) {
  Linear layer(4, 4);
  layer.set_training(false);
  add_lora(layer, "own", {.rank = 1, .dropout = 0.5}, DropoutKey(1), 1);
  EXPECT_FALSE(layer.adapters().front()->training());
}

TEST(LoraTrace, GivesTheNormsOfWhatTheBaseAndTheAdapterGive) {
  Gpt2 model(kSmall, 3);
  add_lora(model, "own", {.targets = {LoraTargets::Kind::suffixes, {"0.attn.qkv"}}},
           model.dropout_key(), 1);
  const ModelInput input{.tokens_BT = some_tokens(), .mask = {}};
  ASSERT_EQ(trace_adapters(model, input).size(), 1U);
  EXPECT_EQ(trace_adapters(model, input)[0].ratio(), 0);  // B is zero
  const auto [layer, adapter] = adapters_of(model, "own").front();
  const auto parameters = adapter->parameters();
  {
    const NoGrad off;
    copy_(parameters[1]->value(), normal({48, 8}, 0, 0.1, 1, 1));
  }
  Values x;
  const auto watch =
      Context::current().events.subscribe<ForwardEvent>([&](const ForwardEvent& event) {
        if (std::string(event.module.path()) == "h.0.ln_1") x = event.output.to_vector<double>();
      });
  const AdapterDelta traced = trace_adapters(model, input).front();
  const auto norm = [](const Values& values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  };
  const Values h = product(x, parameters[0]->value().to_vector<double>(), 16);
  const Values delta = product(h, parameters[1]->value().to_vector<double>(), 8);
  const Values base = product(x, layer->weight().value().to_vector<double>(), 16);
  EXPECT_EQ(traced.adapter, "h.0.attn.qkv.own");
  // Relative rounding of sums of 24 terms whose norm is not far below that of their magnitudes.
  EXPECT_NEAR(traced.base_norm / norm(base), 1, 32 * 24 * kUnit);
  EXPECT_NEAR(traced.delta_norm / (adapter->scale() * norm(delta)), 1, 32 * 24 * kUnit);
  EXPECT_EQ(traced.ratio(), traced.delta_norm / traced.base_norm);
}

}  // namespace
}  // namespace faultline::nn
