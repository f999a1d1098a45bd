// Teaches: all of GPT-2 and its training in one file, with tensors and the tape alone: no nn/, no
// optim/. Its losses are those of `faultline train tiny`, the same model from the framework's
// parts.
#include <cmath>
#include <deque>
#include <numbers>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "autograd/parameter.h"
#include "core/rng.h"
#include "data/corpus.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "example.h"

using namespace faultline;

void train_gpt(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv, {.about = "GPT-2 in one file.", .steps = 100}, &train_gpt);
}

// The sizes of the preset tiny. Letters in names: B batch, T positions, C width, H heads, D width
// of a head, V vocabulary, N = B T.
constexpr int64_t kLayers = 2, B = 4, T = 32, C = 32, H = 2, D = C / H, V = 256;

// ---- the model ----------------------------------------------------------------------------------

struct Linear {
  Tensor weight;
  Tensor bias;
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
};

struct Norm {
  Tensor weight;
  Tensor bias;
  Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias); }
};

// Keys that a query may see: those before it and itself, of its own document.
struct Visible {
  Tensor documents_BT;
};

struct Attention {
  Linear qkv;
  Linear proj;

  Tensor operator()(const Tensor& x_BTC, const Visible& visible) const {
    const auto heads = [](const Tensor& part_BTC) {
      return permute(reshape(part_BTC, {B, T, H, D}), {0, 2, 1, 3});
    };
    const auto [q, k, v] = split3(qkv(x_BTC));
    const Tensor scores_BHTT = matmul(heads(q), transpose(heads(k), -2, -1));
    const MaskAttributes mask{.causal = true, .scale = 1 / std::sqrt(static_cast<double>(D))};
    const Tensor weights_BHTT = masked_softmax(scores_BHTT, {}, visible.documents_BT, mask);
    observe("attention", {scores_BHTT, weights_BHTT, {}, visible.documents_BT}, mask);
    const Tensor y_BHTD = matmul(weights_BHTT, heads(v));
    return proj(reshape(permute(y_BHTD, {0, 2, 1, 3}), {B, T, C}));
  }
};

struct Layer {
  Norm ln_1;
  Attention attn;
  Norm ln_2;
  Linear fc;
  Linear proj;

  Tensor operator()(const Tensor& x_BTC, const Visible& visible) const {
    const Tensor attended_BTC = x_BTC + attn(ln_1(x_BTC), visible);
    return attended_BTC + proj(gelu(fc(ln_2(attended_BTC))));
  }
};

class Gpt {
 public:
  explicit Gpt(uint64_t seed) : seed_(seed) {
    wte_ = random("wte.weight", {V, C}, kDeviation);
    wpe_ = random("wpe.weight", {T, C}, kDeviation);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string h = "h." + std::to_string(i) + ".";
      // Two branches of each layer end on the residual stream: their sum keeps its variance.
      const double ending = kDeviation / std::sqrt(2.0 * kLayers);
      layers_.push_back(
          {norm(h + "ln_1"),
           {dense(h + "attn.qkv", C, 3 * C, kDeviation), dense(h + "attn.proj", C, C, ending)},
           norm(h + "ln_2"),
           dense(h + "mlp.fc", C, 4 * C, kDeviation),
           dense(h + "mlp.proj", 4 * C, C, ending)});
    }
    ln_f_ = norm("ln_f");
  }

  // Logits of the next token at each position.
  Tensor operator()(const Tensor& tokens_BT, const Visible& visible) const {
    Tensor x_BTC = embedding(wte_, tokens_BT) + embedding(wpe_, arange(T, 0, 1, DType::i32));
    for (const Layer& layer : layers_) x_BTC = layer(x_BTC, visible);
    return linear(ln_f_(x_BTC), wte_);
  }

  std::deque<Parameter>& parameters() { return parameters_; }

 private:
  static constexpr double kDeviation = 0.02;

  Tensor add(const std::string& name, const Tensor& value, Decay decay) {
    return parameters_.emplace_back(name, value, decay).value();
  }
  // Each has a random stream of its own, so that no other parameter moves its numbers.
  Tensor random(const std::string& name, const Shape& shape, double deviation) {
    return add(name, normal(shape, 0, deviation, seed_, stream_of(name.c_str())), Decay::yes);
  }
  Linear dense(const std::string& name, int64_t in, int64_t out, double deviation) {
    return {random(name + ".weight", {out, in}, deviation),
            add(name + ".bias", zeros({out}), Decay::no)};
  }
  Norm norm(const std::string& name) {
    return {add(name + ".weight", ones({C}), Decay::no),
            add(name + ".bias", zeros({C}), Decay::no)};
  }

  uint64_t seed_;
  std::deque<Parameter> parameters_;
  Tensor wte_;
  Tensor wpe_;
  std::vector<Layer> layers_;
  Norm ln_f_;
};

// ---- the optimizer ------------------------------------------------------------------------------

// Warm-up, then half a cosine from the highest rate to a tenth of it.
double learning_rate(int64_t step) {
  constexpr double kHighest = 3e-3, kLowest = 3e-4;
  constexpr int64_t kWarmup = 20, kEnd = 300;
  if (step < kWarmup) return kHighest * static_cast<double>(step) / kWarmup;
  if (step >= kEnd) return kLowest;
  const double done = static_cast<double>(step - kWarmup) / (kEnd - kWarmup);
  return kLowest + (kHighest - kLowest) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double norm_of_gradients(const std::deque<Parameter>& parameters) {
  double squares = 0;
  for (const Parameter& parameter : parameters) {
    squares += sum(square(cast(parameter.gradient(), DType::f64))).item<double>();
  }
  return std::sqrt(squares);
}

// AdamW (Loshchilov and Hutter 2019). Gradients are scaled as they are read, which clips them.
class AdamW {
 public:
  explicit AdamW(std::deque<Parameter>& parameters) {
    for (Parameter& parameter : parameters) {
      const Shape& shape = parameter.value().shape();
      states_.push_back({&parameter, zeros(shape), zeros(shape)});
    }
  }

  void step(double lr, double scale) {
    ++steps_;
    const double c1 = 1 - std::pow(kBeta1, static_cast<double>(steps_));
    const double c2 = 1 - std::pow(kBeta2, static_cast<double>(steps_));
    for (const auto& [parameter, m, v] : states_) {
      const Tensor g = parameter->gradient() * scale;
      copy_(m, m * kBeta1 + g * (1 - kBeta1));
      copy_(v, v * kBeta2 + square(g) * (1 - kBeta2));
      const double decay = parameter->decay() == Decay::yes ? kWeightDecay : 0;
      const Tensor update = m / (sqrt(v) * (1 / std::sqrt(c2)) + kEpsilon);
      copy_(parameter->value(), parameter->value() * (1 - lr * decay) - update * (lr / c1));
    }
  }

 private:
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8, kWeightDecay = 0.1;
  struct State {
    Parameter* parameter;
    Tensor m;
    Tensor v;
  };
  std::vector<State> states_;
  int64_t steps_ = 0;
};

// ---- the loop -----------------------------------------------------------------------------------

void train_gpt(Example& example) {
  const EventBus& events = example.context().events;
  const TokenStore tokens = ByteTokenizer().tokenize(default_corpus());
  Sampler sampler(tokens, hold_out_last_tenth(tokens, T).training, {T, B, example.seed()});
  Gpt gpt(example.seed());
  AdamW optimizer(gpt.parameters());
  std::vector<Parameter*> parameters;
  for (Parameter& parameter : gpt.parameters()) parameters.push_back(&parameter);

  while (example.next_step()) {
    for (Parameter* parameter : parameters) parameter->clear_gradient();
    events.emit(train::StepBeginEvent{example.step(), parameters});
    const Batch batch = sampler.batch();
    events.emit(train::BatchEvent{example.step(), batch});
    const Tensor logits_NV = reshape(gpt(batch.inputs, {batch.documents}), {B * T, V});
    const Tensor sum_of_losses = sum(cross_entropy_rows(logits_NV, reshape(batch.labels, {B * T})));
    const Tensor loss = sum_of_losses * (1.0 / static_cast<double>(batch.valid_tokens));
    const double sum_of_step = sum_of_losses.item<double>();
    events.emit(train::ObjectiveEvent{example.step(), batch.valid_tokens, sum_of_step, loss});
    backward(loss);

    const NoGrad off;
    const double norm = norm_of_gradients(gpt.parameters());
    const double lr = learning_rate(example.step());
    optimizer.step(lr, std::min(1.0, 1 / norm));
    sampler.advance();
    example.end_step(loss.item<double>(), lr, batch.valid_tokens, norm);
  }
}
