#include <string_view>

#include "autograd/functional.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: what is decayed is guessed from names, and the list of exceptions was written for
// another model. Here the norms are called ln_1, ln_2 and ln_f, or just norm.
bool decays_by_name(const Parameter& parameter) {
  const std::string_view name = parameter.name();
  for (const char* exempt : {"bias", "LayerNorm.weight"}) {
    if (name.find(exempt) != std::string_view::npos) return false;
  }
  return true;
}

std::shared_ptr<void> guess_from_names(Context& context) {
  return context.seams.replace<optim::DecaySeam>(&decays_by_name);
}
// page: end

// What people do: decay by shape, whatever the names are. Gains and biases have one dimension.
bool decays_by_shape(const Parameter& parameter) { return parameter.value().rank() >= 2; }

std::shared_ptr<void> exempt_vectors(Context& context) {
  return context.seams.replace<optim::DecaySeam>(&decays_by_shape);
}

// The gain of a norm, 1, under a gradient that is 0: whatever moves it is weight decay.
class UnusedGain : public TrainedExperiment {
 public:
  explicit UnusedGain(const RunOptions&)
      : gain_("norm.weight", ones({1}), Decay::no),
        optimizer_(optim::decay_groups({&gain_}, kWeightDecay)) {}

  void step(int64_t step) override {
    gain_.clear_gradient();
    backward(gain_.value() * 0.0);
    optimizer_.step(kLearningRate);
    if (step % kDrawEvery != 0) return;
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(gain_.value().item<double>());
  }
  void report(Metrics& metrics) override {
    metrics.measure("gain", gain_.value().item<double>());
    metrics.add(curve_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }

  static constexpr double kLearningRate = 0x1p-10;
  static constexpr double kWeightDecay = 0x1p-3;
  static constexpr int64_t kDrawEvery = 128;

  Parameter gain_;
  optim::AdamW optimizer_;
  Curve curve_{"gain", {}, {}};
};

}  // namespace

FAULT(wd_on_norm) {
  Fault& fault = lab.fault(
      {.id = "wd.on-norm",
       .title = "Weight decay pulls norm gains towards zero",
       .domain = "optimizer",
       .mechanism =
           "AdamW multiplies a decayed parameter by 1 - lr * weight_decay at every step, whatever "
           "its gradient is. A weight matrix is pulled towards 0, where it does nothing; the gain "
           "of a norm does nothing at 1, so decay pulls it away from where it began, and shrinks "
           "the signal that every layer gets. Without a gradient the gain after k steps is (1 - lr "
           "* weight_decay)^k: with lr 2^-10, weight decay 2^-3 and 8,192 steps, (1 - 2^-13)^8192 "
           "= 0.367857, nearly 1/e. With one, the two settle where they balance, below what the "
           "loss alone asks for.",
       .symptom = "No error and no spike: a loss that ends a little higher than it should. Gains "
                  "of all norms drift below 1 together, those with small gradients most.",
       .truth =
           "The list of exceptions names \"LayerNorm\" and the model calls its norms ln_1, "
           "layer_norm, norm or RMSNorm: nothing matches, nothing complains. A filter by type "
           "misses norms that a model defines itself. Whether decaying gains hurts is a matter of "
           "the model, and some people do it on purpose; the fault is that the optimizer does what "
           "nobody declared.",
       .fix = "Declare with each parameter whether it is decayed, where it is made; or decay by "
              "shape, only what has two dimensions or more. Print both lists once before training.",
       .sources =
           {"transformers pull request 35927 (2025-01-28): the filter by type misses RMSNorm; "
            "names are matched as well. https://github.com/huggingface/transformers/pull/35927",
            "transformers issue 16908 (2022-04-23): \"LayerNorm.weight\" does not match a norm "
            "called layer_norm. https://github.com/huggingface/transformers/issues/16908",
            "Fast-LLM pull request 545 (2026-06-17): a refactoring made norms and biases fall back "
            "to being decayed. https://github.com/ServiceNow/Fast-LLM/pull/545"},
       .look_alikes =
           "Gains also shrink because the loss asks for it: then they move by different amounts "
           "and in both directions, and a gain with zero gradient stays put. A learning rate that "
           "is too high drives all parameters, not gains alone. What refutes this fault is the "
           "list of the optimizer's decayed group: no parameter in it that declares otherwise.",
       .exercise = "In f32, choose lr 1e-6 and weight decay 0.01 and let the same run go 100,000 "
                   "steps. Where is the gain then, and where should it be?",
       .answer = "Still at 1 exactly. lr * weight_decay = 1e-8 is less than 2^-25 = 2.98e-8, half "
                 "the distance from 1 to the next smaller f32, so 1 - 1e-8 rounds to 1 and the "
                 "decay is silently off. In exact arithmetic the gain would be 0.9990005."});

  fault.only_variant()
      .wrong(&guess_from_names)
      .run<UnusedGain>(8192)
      .remedy(&exempt_vectors)
      .expect_within("gain", 0.367857, 3e-5,
                     "8,192 roundings of at most 2^-25, up as often as down, leave about "
                     "sqrt(8192) 2^-25 = 2.7e-6; this is ten times that")
      .caught_by("decay.policy")
      .in_training({.steps = 200, .needs = {{"weight_decay", "0.1"}}});
}

}  // namespace faultline::lab
