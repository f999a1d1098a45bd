#include <cmath>
#include <memory>

#include "autograd/functional.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "nn/lora.h"
#include "optim/optimizer.h"
#include "train/events.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: the parameters were made without memory and filled with zeros when it came. What
// would have drawn A ran before that.
void zeros_for_both(const Tensor& a, const Tensor& b, uint64_t, uint64_t) {
  fill_(a, 0);
  fill_(b, 0);
}
// page: end

// What people do: they draw A by hand, after the memory is there, as the paper has it (normal), and
// leave B.
void draw_by_hand(const Tensor& a, const Tensor& b, uint64_t seed, uint64_t stream) {
  zeros_for_both(a, b, seed, stream);
  copy_(a, normal(a.shape(), 0, 1.0 / static_cast<double>(a.size(0)), seed, stream));
}

// One layer with an adapter, and a target that the frozen weight misses.
class OneAdapter : public TrainedExperiment {
 public:
  explicit OneAdapter(const RunOptions& options)
      : x_(normal({8, 4}, 0, 1, options.seed, 1)), key_(options.seed), layer_(4, 4, nn::Bias::no) {
    add_lora(layer_, "tuned", {.rank = 2, .alpha = 4}, key_, options.seed);
    factors_ = nn::trainable_parameters(layer_);
    optimizer_ = std::make_unique<optim::AdamW>(std::vector<optim::ParameterGroup>{{factors_, 0}},
                                                optim::AdamWOptions{});
  }

  void step(int64_t step) override {
    layer_.clear_gradients();
    Context::current().events.emit(train::StepBeginEvent{step, factors_});
    const Tensor off = layer_(x_) - x_;
    backward(sum(off * off));
    optimizer_->step(1e-2);
    look(step);
  }
  void report(Metrics& metrics) override {
    metrics.count("factors with a gradient", with_gradient_);
    metrics.count("factors that are not 0", not_zero());
    metrics.add(norms_);
  }

 private:
  optim::Optimizer& optimizer() override { return *optimizer_; }

  void look(int64_t step) {
    with_gradient_ = 0;
    double squares = 0;
    for (const Parameter* factor : factors_) {
      double own = 0;
      for (const double g : factor->gradient().to_vector<double>()) own += g * g;
      with_gradient_ += own > 0 ? 1 : 0;
      squares += own;
    }
    norms_.x.push_back(static_cast<double>(step));
    norms_.y.push_back(std::sqrt(squares));
  }

  // Each begins at 0 or at random, and is only then 0 if it never moved.
  double not_zero() const {
    double count = 0;
    for (const Parameter* factor : factors_) {
      double size = 0;
      for (const double value : factor->value().to_vector<double>()) size += std::abs(value);
      count += size > 0 ? 1 : 0;
    }
    return count;
  }

  Tensor x_;
  nn::DropoutKey key_;
  nn::Linear layer_;
  std::vector<Parameter*> factors_;
  std::unique_ptr<optim::AdamW> optimizer_;
  double with_gradient_ = 0;
  Curve norms_{"gradient norm", {}, {}};
};

}  // namespace

FAULT(lora_both_zero) {
  Fault& fault = lab.fault(
      {.id = "lora.both-zero",
       .title = "Both factors of an adapter are zero, and stay so",
       .domain = "adapters",
       .mechanism =
           "An adapter adds s B A x. With the gradient g of the output, dB = s g (A x)^T and "
           "dA = s B^T g x^T: each has the other factor in it. LoRA begins with A at random and "
           "B = 0, so dA is 0 in the first step, dB is not, and after that step neither is 0. With "
           "A = 0 as well both gradients are exactly 0, AdamW divides 0 by eps, nothing moves, and "
           "the next step is the same one. 0 of 2 factors ever get a gradient.",
       .symptom =
           "The loss stays at the base's. The gradient norm is 0 from the first step. Nothing "
           "fails; the saved adapter is all zeros.",
       .truth =
           "Zero is a saddle of a product: flat in every direction. One zero factor is on purpose "
           "(the tuned model begins as its base), two are an accident, mostly of deferred "
           "initialisation: the layer's own initialiser ran on parameters without memory, and what "
           "fills them later knows only zeros.",
       .fix = "Initialise A after the memory is there, B with zeros, and check before the first "
              "step that A is not 0.",
       .sources =
           {"cosmos-predict2.5 pull request 15 (2025-10-21): adapters that are added before the "
            "weights are initialised get lora_A of zeros only, and nothing trains. "
            "https://github.com/nvidia-cosmos/cosmos-predict2.5/pull/15",
            "relora issue 18 (2024-11-10): both factors begin at zero; a reader derives that both "
            "gradients stay zero. https://github.com/Guitaricet/relora/issues/18",
            "litgpt issue 1229 (2024-04-01): suspects it under deferred initialisation; the "
            "maintainers are not sure, so a report. "
            "https://github.com/Lightning-AI/litgpt/issues/1229"},
       .look_alikes =
           "The healthy first step, in which the gradient of every A is 0. Reentrant "
           "checkpointing over a frozen base, which leaves gradients undefined and not zero. "
           "A learning rate of 0, with gradients that are not. Refuted by one element of A or B "
           "that is not 0.",
       .exercise = "Begin with A = 0 and B at random. Which gradient is 0 in the first step, and "
                   "does the adapter learn?",
       .answer = "dB = s g (A x)^T is 0, dA = s B^T g x^T is not. A moves in the first step, then "
                 "both do. It learns; only both at once are fatal."});

  fault.only_variant()
      .wrong(
          [](Context& context) { return context.seams.replace<nn::LoraInitSeam>(&zeros_for_both); })
      .run<OneAdapter>(8)
      .remedy(
          [](Context& context) { return context.seams.replace<nn::LoraInitSeam>(&draw_by_hand); })
      .expect("factors with a gradient", 0)
      .expect("factors that are not 0", 0)
      .caught_by("adapter.zero")
      .in_training({.steps = 200, .needs = {{"lora", "r=4,alpha=8"}}});
}

}  // namespace faultline::lab
