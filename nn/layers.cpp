#include "nn/layers.h"

#include "core/rng.h"
#include "nn/lora.h"

namespace faultline::nn {

Linear::Linear(int64_t in, int64_t out, Bias bias)
    : weight_(add_parameter("weight", {out, in}, Decay::yes)),
      bias_(bias == Bias::yes ? &add_parameter("bias", {out}, Decay::no) : nullptr) {}

Linear::~Linear() = default;

Tensor Linear::operator()(const Tensor& x) {
  return unit([&] {
    const Tensor y = linear(x, use(weight_), bias_ != nullptr ? use(*bias_) : Tensor());
    return adapters_.empty() ? y : adapted(x, y);
  });
}

// Summed in the adapters' dtype, the wider one, and rounded once.
Tensor Linear::adapted(const Tensor& x, const Tensor& y) {
  const EventBus& events = Context::current().events;
  Tensor sum = y;
  for (const auto& adapter : adapters_) {
    if (adapter->role() != AdapterRole::active) continue;
    const Tensor delta = (*adapter)(x);
    if (events.wanted<LoraEvent>()) {
      const NoGrad off;
      events.emit(LoraEvent{*this, *adapter, linear(x, use(weight_)), delta});
    }
    sum = cast(sum, delta.dtype()) + delta;
  }
  return cast(sum, y.dtype());
}

void Linear::attach(const std::string& name, std::unique_ptr<LoraAdapter> adapter) {
  add_child(name, *adapter);
  adapter->set_training(training());
  adapters_.push_back(std::move(adapter));
}

Embedding::Embedding(int64_t count, int64_t width)
    : weight_(add_parameter("weight", {count, width}, Decay::yes)) {}

Tensor Embedding::operator()(const Tensor& ids) {
  return unit([&] { return embedding(use(weight_), ids); });
}

Tensor Embedding::project(const Tensor& x) {
  return unit([&] { return linear(x, use(weight_)); });
}

LayerNorm::LayerNorm(int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(add_parameter("weight", {width}, Decay::no)),
      bias_(add_parameter("bias", {width}, Decay::no)) {
  const NoGrad off;
  fill_(weight_.value(), 1);
}

Tensor LayerNorm::operator()(const Tensor& x) {
  return unit([&] { return layer_norm(x, use(weight_), use(bias_), epsilon_); });
}

RmsNorm::RmsNorm(int64_t width, double epsilon)
    : epsilon_(epsilon), weight_(add_parameter("weight", {width}, Decay::no)) {
  const NoGrad off;
  fill_(weight_.value(), 1);
}

Tensor RmsNorm::operator()(const Tensor& x) {
  return unit([&] { return rms_norm(x, use(weight_), epsilon_); });
}

DropoutKey::DropoutKey(uint64_t seed) : seed_(seed), key_(empty({3}, DType::i64, "dropout key")) {
  set(0, 0);
}

void DropoutKey::set(int64_t step, int64_t first_sequence) {
  const int64_t values[] = {static_cast<int64_t>(seed_), step, first_sequence};
  key_.assign(std::span<const int64_t>(values), "dropout key");
}

uint32_t dropout_number(const char* path) { return static_cast<uint32_t>(stream_of(path)); }

DropoutUse Dropout::use_now() const {
  if (p_ == 0 || !Context::current().seams.call<DropoutModeSeam>(*this)) return {};
  return {key_.tensor(), p_, dropout_number(path())};
}

Tensor Dropout::operator()(const Tensor& x) {
  const DropoutUse use = use_now();
  if (use.p == 0) return x;
  return unit([&] { return dropout(x, use.key, use.p, use.layer); });
}

}  // namespace faultline::nn
