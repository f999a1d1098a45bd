#include "autograd/functional.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: nobody clears anything.
void clear_nothing(nn::Module&) {}

std::shared_ptr<void> keep_gradients(Context& context) {
  return context.seams.replace<train::ZeroGradSeam>(&clear_nothing);
}
// page: end

class OneWeight : public nn::Module {
 public:
  OneWeight() { add_parameter("weight", {1}, Decay::no); }
};

// Plain SGD on loss = weight: its gradient is 1 at every step. All numbers are exact in f32.
class LinearLoss : public TrainedExperiment {
 public:
  explicit LinearLoss(const RunOptions&)
      : parameters_(model_.parameters()), optimizer_({{parameters_, 0}}) {
    fill_(weight().detach(), 0);
  }

  void step(int64_t step) override {
    Context& context = Context::current();
    context.seams.call<train::ZeroGradSeam>(model_);
    context.events.emit(train::StepBeginEvent{step, parameters_});
    backward(weight() * 1.0);
    optimizer_.step(0.0625);
    gradient_ = parameters_[0]->gradient().item<double>();
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(gradient_);
  }
  void report(Metrics& metrics) override {
    metrics.measure("gradient", gradient_);
    metrics.measure("weight", weight().item<double>());
    metrics.add(curve_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }
  const Tensor& weight() const { return parameters_[0]->value(); }

  OneWeight model_;
  std::vector<Parameter*> parameters_;
  optim::Sgd optimizer_;
  double gradient_ = 0;
  Curve curve_{"gradient", {}, {}};
};

}  // namespace

FAULT(optim_missing_zero_grad) {
  Fault& fault = lab.fault(
      {.id = "optim.missing-zero-grad",
       .title = "Gradients are never cleared between steps",
       .domain = "optimizer",
       .mechanism =
           "backward adds to the gradient that a parameter already holds. Without clearing, step "
           "k uses the sum of the gradients of steps 1 to k. On a linear loss with gradient 1 "
           "that is k: ten steps of 1/16 move the weight by (1 + 2 + ... + 10)/16 = 3.4375 in "
           "place of 10/16 = 0.625. It is momentum without decay: the sum never forgets.",
       .symptom =
           "The gradient norm climbs steadily while the loss first falls a little faster than "
           "usual, then oscillates or diverges. It looks like a learning rate that is too high, "
           "and lowering the rate only delays it.",
       .truth =
           "With AdamW the effect is smaller than with SGD, because a gradient that has grown k "
           "times is divided by a root mean square that has grown alike; what stays is the wrong, "
           "outdated direction. Clipping hides it in the same way.",
       .fix = "Clear the gradients of all parameters once a step, before its first micro-batch. A "
              "loop that accumulates on purpose clears after the optimizer step, not after each "
              "backward.",
       .sources =
           {"Stack Overflow question 60335387 (2020), one of the bugs in TrainCheck's set. "
            "https://stackoverflow.com/questions/60335387",
            "TrainCheck, OSDI 2025: silent training errors and the invariants that catch them. "
            "https://www.usenix.org/conference/osdi25/presentation/jiang"},
       .look_alikes =
           "A learning rate that is too high also makes the loss oscillate, but its gradients "
           "follow the loss and do not climb while it falls; lowering the rate cures it, and here "
           "only delays it. Accumulation over micro-batches keeps gradients on purpose, within a "
           "step: what counts is whether any is left when a step begins. A gradient check that "
           "runs backward on its own adds the same amount at each step and never more.",
       .exercise = "Clear after every micro-batch instead of once a step, and accumulate over 4. "
                   "What does the optimizer see, and would this detector notice?",
       .answer = "Only the last micro-batch: a quarter of the data, and, with the loss divided by "
                 "the labels of the whole step, a gradient about a quarter as large. Every step "
                 "begins with clear gradients, so this detector is silent, and rightly: what is "
                 "wrong is how the micro-batches are put together."});

  fault.only_variant()
      .wrong(&keep_gradients)
      .run<LinearLoss>(10)
      .expect("gradient", 10)
      .expect("weight", -3.4375)
      .caught_by("gradients.cleared")
      .in_training({.steps = 200});
}

}  // namespace faultline::lab
