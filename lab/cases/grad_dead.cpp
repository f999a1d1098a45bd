#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "nn/gpt2.h"
#include "optim/optimizer.h"
#include "train/events.h"

namespace faultline::lab {
namespace {

// ---- the wrong code -----------------------------------------------------------------------------

// The activation is ReLU, and one large step has pushed the biases in front of it to -10: no unit
// is above 0 again, for any input.
void push_biases_down(const std::vector<Parameter*>& parameters) {
  const NoGrad off;
  for (const Parameter* parameter : parameters) {
    if (parameter->name().ends_with("mlp.fc.bias")) fill_(parameter->value().detach(), -10);
  }
}

std::shared_ptr<void> die(Context& context) {
  using Guards = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Guards>(
      context.seams.replace<nn::ActivationSeam>([](const Tensor& x, nn::Gelu) { return relu(x); }),
      context.events.subscribe<train::StepBeginEvent>(
          [pushed = false](const train::StepBeginEvent& event) mutable {
            if (!std::exchange(pushed, true)) push_biases_down(event.parameters);
          }));
}

// What people do about it: a slope below 0 as well, which leads the gradient back to the biases.
Tensor leaky_relu(const Tensor& x, nn::Gelu) { return relu(x) - relu(-x) * 0.01; }

std::shared_ptr<void> leak(Context& context) {
  return context.seams.replace<nn::ActivationSeam>(&leaky_relu);
}

// page: begin
// The value is handed on without its history: the loss changes with it, and no gradient returns.
Tensor gelu_of_detached(const Tensor& x, nn::Gelu) { return gelu(x.detach()); }

std::shared_ptr<void> detach_activations(Context& context) {
  return context.seams.replace<nn::ActivationSeam>(&gelu_of_detached);
}
// page: end

// The branch is computed, and its result is not used.
Tensor without_branch(const Tensor& x_BTC, const Tensor&) { return x_BTC; }

// ---- the run ------------------------------------------------------------------------------------

constexpr int64_t kBlockSymbols = 16;
constexpr int64_t kBlockPositions = 8;

// GPT-2 of one block and 16 parameter tensors on random tokens.
class OneBlock : public TrainedExperiment {
 public:
  explicit OneBlock(const RunOptions& options)
      : seed_(options.seed),
        model_({.vocab_size = kBlockSymbols,
                .seq_len = kBlockPositions,
                .num_layers = 1,
                .num_heads = 2,
                .hidden_size = 8},
               options.seed),
        parameters_(model_.parameters()),
        optimizer_({{parameters_, 0}}) {}

  void step(int64_t step) override {
    model_.clear_gradients();
    Context::current().events.emit(train::StepBeginEvent{step, parameters_});
    const auto drawn = static_cast<uint64_t>(step);
    const Tensor inputs = tokens(2 * drawn);
    const Tensor loss = nn::language_model_loss(model_(inputs, {}), tokens(2 * drawn + 1));
    backward(loss * (1.0 / (2 * kBlockPositions)));
    optimizer_.step(1e-3);
    look();
  }
  void report(Metrics& metrics) override {
    metrics.count("undefined", static_cast<double>(undefined_));
    metrics.count("zero", static_cast<double>(zero_));
    metrics.add(alive_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }
  Tensor tokens(uint64_t number) const {
    const RandomSequence random(seed_, stream_of("grad.dead tokens") + number);
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 2 * kBlockPositions; ++i) {
      ids.push_back(static_cast<int32_t>(random.below(kBlockSymbols, i)));
    }
    return tensor(ids, {2, kBlockPositions});
  }

  // The gradients of this step, parameter by parameter.
  void look() {
    undefined_ = 0;
    zero_ = 0;
    alive_ = {"gradient elements that are not 0, % by parameter number", {}, {}};
    for (const Parameter* parameter : parameters_) {
      const Tensor gradient = parameter->gradient();
      int64_t alive = 0;
      if (gradient.defined()) {
        for (const double g : gradient.to_vector<double>()) alive += g != 0 ? 1 : 0;
        zero_ += alive == 0 ? 1 : 0;
      } else {
        ++undefined_;
      }
      alive_.x.push_back(static_cast<double>(alive_.x.size()));
      alive_.y.push_back(100.0 * static_cast<double>(alive) /
                         static_cast<double>(parameter->value().numel()));
    }
  }

  uint64_t seed_;
  nn::Gpt2 model_;
  std::vector<Parameter*> parameters_;
  optim::AdamW optimizer_;
  int64_t undefined_ = 0;
  int64_t zero_ = 0;
  Curve alive_;
};

constexpr int64_t kBlockSteps = 160;

FaultText grad_dead_text() {
  return {
      .id = "grad.dead",
      .title = "Some parameters never get a gradient",
      .domain = "training",
      .seed = "000 1",
      .mechanism =
          "A gradient is a product along the path from the loss to the parameter. It is zero "
          "when a factor is: behind a ReLU whose inputs are all below 0, max(0, z) has slope 0, so "
          "the layer before it, the norm before that, and, because its input is 0, the weight "
          "behind it get zeros in every element. It is undefined when there is no path: "
          "detach() hands a value on without its history, and a result that nobody uses leads "
          "nowhere. In a block of GPT-2 with 12 parameter tensors a dead activation leaves 5 with "
          "zeros, a detached one leaves 4 undefined, and a dropped branch all 12. An optimizer "
          "skips what is undefined. With zeros AdamW moves nothing either, but for weight decay.",
      .symptom =
          "The loss falls, because the rest of the model learns, and stops too high. The "
          "total gradient norm looks healthy. Parameters that are dead keep their initial "
          "values, or decay.",
      .article_says =
          "\"All gradients 0\" comes from dead ReLUs, misused detach or a missing path; check with "
          "any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters()).",
      .truth =
          "The three causes are real, the check is not: any() is true as soon as one parameter of "
          "the whole model is alive. It has to be asked of each parameter, and undefined told "
          "from zero, because they have different causes. Anomaly detection is no help: it looks "
          "for NaN, and nothing is NaN here. And a zero is right at times: a LoRA adapter begins "
          "with B = 0, so the first gradient of A is exactly 0; rows of an embedding for tokens "
          "not in the batch are 0; an expert that got no token has zeros or none; frozen "
          "parameters have none. So the detector waits for 150 steps, and longer for a parameter "
          "that was without a gradient for a while before.",
      .fix =
          "Undefined: find the cut just above the first such parameter (detach, NoGrad, an item "
          "taken out and put back, a result not used, checkpointing without an input that "
          "requires a gradient). Zero: lower the learning rate or its first steps, use an "
          "activation with a slope below 0, and look for a factor initialised to 0.",
      .sources =
          {"microsoft/LoRA issue 120 (2023-08-30): with gradient checkpointing all gradients are "
           "None and A and B stay as they are. https://github.com/microsoft/LoRA/issues/120",
           "cloneofsimo/lora issue 26 (2022-12-13): gradient checkpointing blocks the updates of "
           "LoRA weights. https://github.com/cloneofsimo/lora/issues/26",
           "open-unlearning issue 178 (2026-03-05): after training, every lora_B is still zero. "
           "https://github.com/locuslab/open-unlearning/issues/178",
           "Lu, Shin, Su and Karniadakis, \"Dying ReLU and initialization: theory and numerical "
           "examples\" (2019). https://arxiv.org/abs/1903.06733"},
      .look_alikes =
          "Vanishing gradients are small, not 0: one element that is not 0 refutes this fault. In "
          "fp16 small ones underflow to 0 in all layers at once and come back with a larger loss "
          "scale. A skipped step (found_inf) moves no parameter although all have gradients. A "
          "parameter that the optimizer does not hold has a gradient and is not moved. A "
          "frozen parameter is not trainable, and meant so.",
      .exercise =
          "In the dead ReLU, the second linear layer of the MLP has a weight with zero "
          "gradient and a bias that is alive. Why, and can the bias bring the layer back?",
      .answer =
          "The weight's gradient is the outer product of what comes from above with the "
          "layer's input, and that input is 0. The bias takes what comes from above as it "
          "is. It cannot help: nothing that it changes lies before the ReLU of its own "
          "block. Only an earlier block that shifts its output could, and the norm in "
          "between undoes most of that."};
}

}  // namespace

FAULT(grad_dead) {
  Fault& fault = lab.fault(grad_dead_text());

  // ln_2 (2), mlp.fc (2) and mlp.proj.weight.
  fault.variant("dead-relu", "Behind a dead ReLU every gradient is zero")
      .wrong(&die)
      .run<OneBlock>(kBlockSteps)
      .remedy(&leak)
      .expect("zero", 5)
      .caught_by("gradients.dead")
      .in_training({.steps = 200});

  // ln_2 (2) and mlp.fc (2).
  fault.variant("detach", "A detached activation cuts the gradient")
      .wrong(&detach_activations)
      .run<OneBlock>(kBlockSteps)
      .expect("undefined", 4)
      .caught_by("gradients.dead")
      .in_training({.steps = 200});

  // All 12 of the block.
  fault.variant("no-path", "A result that nobody uses gives no gradient")
      .wrong(
          [](Context& context) { return context.seams.replace<nn::ResidualSeam>(&without_branch); })
      .run<OneBlock>(kBlockSteps)
      .expect("undefined", 12)
      .caught_by("gradients.dead")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
