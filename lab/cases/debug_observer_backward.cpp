#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/module.h"

namespace faultline::lab {
namespace {

// y = weight * x.
class ScaleLayer : public nn::Module {
 public:
  ScaleLayer() : weight_(add_parameter("weight", {1}, Decay::no)) {}

  Tensor operator()(const Tensor& x) {
    return unit([&] { return use(weight_) * x; });
  }
  Parameter& weight() { return weight_; }

 private:
  Parameter& weight_;
};

// A module inside of a model has a name.
class OneLayerModel : public nn::Module {
 public:
  OneLayerModel() { add_child("layer", layer); }
  ScaleLayer layer;
};

// page: begin
// The wrong code: a gradient check that is called after each layer's forward pass. A tape is used
// up by its backward pass, so where PyTorch needs retain_graph=True this computes the output again.
void check_gradient_flow(const nn::ForwardEvent& event) {
  const Tensor dummy_loss = sum(event.again());
  backward(dummy_loss);
}

std::shared_ptr<void> watch_gradient_flow(Context& context) {
  return context.events.subscribe<nn::ForwardEvent>(&check_gradient_flow);
}
// page: end

// Steps with the losses -4y, -3y, ..., 4y for x = 1, whose gradients are -4, -3, ..., 4. Somebody
// begins to look before the fourth.
class GradientsOfMultiples : public Experiment {
 public:
  explicit GradientsOfMultiples(const RunOptions&) {}

  void step(int64_t step) override {
    model_.clear_gradients();
    backward(model_.layer(ones({1})) * (static_cast<double>(step) - kMiddle));
    gradients_[static_cast<size_t>(step) - 1] = model_.layer.weight().gradient().item<double>();
  }
  State state() override {
    State state = model_.state();
    state.tensors["gradients"] = tensor(gradients_, {kSteps});
    return state;
  }
  void load(const State& state) override {
    copy_(model_.layer.weight().value().detach(), state.tensor("layer.weight"));
    gradients_ = state.tensor("gradients").to_vector<double>();
  }
  void report(Metrics& metrics) override {
    metrics.measure("gradient of y", gradient_of(1));
    metrics.measure("gradient of 3y", gradient_of(3));
    Curve curve{"gradient of a y by a, watched from a = -1 on", {}, {}};
    for (int64_t a = 1 - kMiddle; a < kMiddle; ++a) {
      curve.x.push_back(static_cast<double>(a));
      curve.y.push_back(gradient_of(a));
    }
    metrics.add(curve);
  }

  static constexpr int64_t kSteps = 9;

 private:
  static constexpr int64_t kMiddle = 5;  // the step whose loss is 0 y
  double gradient_of(int64_t a) const { return gradients_[static_cast<size_t>(a + kMiddle - 1)]; }

  OneLayerModel model_;
  std::vector<double> gradients_ = std::vector<double>(kSteps, 0);
};

}  // namespace

FAULT(debug_observer_backward) {
  Fault& fault = lab.fault(
      {.id = "debug.observer-backward",
       .title = "A gradient check runs backward and adds to the gradients",
       .domain = "debugging",
       .seed = "000 1",
       .mechanism =
           "backward adds to the gradient that a parameter holds. A forward hook that calls "
           "backward on sum(y) to see whether gradients flow leaves the gradient of sum(y) in "
           "every parameter below, and the step's own backward adds to that. For y = w x with x = "
           "1 and the loss y, the gradient of w is 1 + 1 = 2 in place of 1. The factor 2 is an "
           "accident of that loss: for the loss 3y it is 3 + 1 = 4, for -y it is -1 + 1 = 0. With "
           "a hook on each of n layers, a parameter gets the gradients of up to n such sums.",
       .symptom =
           "Training behaves differently while it is being watched: other losses, a larger "
           "gradient norm, and the trouble that was looked for may come or go. Without the check "
           "all is as before.",
       .article_says =
           "A hook check_gradient_flow(name, module, input, output), registered on a layer with "
           "register_forward_hook, calls output.sum().backward(retain_graph=True) to verify the "
           "path of the gradient.",
       .truth =
           "As printed it fails at its first call: a forward hook is called with (module, args, "
           "output), three arguments, and this one takes four; and _is_leaf, which it asks for, is "
           "no attribute of a tensor. Mended, it works as a check and spoils what it checks: it "
           "adds the gradient of sum(y) to every parameter. That doubles the gradient only where "
           "sum(y) is the loss.",
       .fix = "Look without touching: gradients(sum(y), leaves) here, torch.autograd.grad there, "
              "return gradients and leave .grad alone. Better still, put a hook on the gradient "
              "that the step's own backward computes anyway.",
       .sources =
           {"PyTorch documentation (read 2026-11), register_module_forward_hook: the hook is "
            "called as hook(module, input, output). https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.modules.module.register_module_forward_hook.html",
            "PyTorch documentation (read 2026-11), Tensor.backward: it accumulates gradients in "
            "the leaves, which may have to be cleared before. "
            "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html"},
       .look_alikes =
           "Gradients that were never cleared also hold too much, but then more at each step, and "
           "the first step is right. Accumulation over micro-batches adds on purpose, after each "
           "forward pass and not inside of it. A loss summed where a mean is meant scales all "
           "gradients by one factor. What refutes this fault: gradients are equal, bit by bit, "
           "with the observer and without it.",
       .exercise = "Two layers, y = w2 (w1 x) with x = 1, w1 = 2, w2 = 3 and the loss y; the hook "
                   "sits on both. What do w1 and w2 hold after the step's backward?",
       .answer = "The hook on the first layer adds d(w1 x)/dw1 = 1 to w1. The one on the second "
                 "runs back through both: 3 to w1 and 2 to w2. The step itself adds 3 and 2 once "
                 "more: w1 holds 1 + 3 + 3 = 7 in place of 3, w2 holds 2 + 2 = 4 in place of 2. No "
                 "single factor undoes that."});

  fault.only_variant()
      .wrong(&watch_gradient_flow)
      .run<GradientsOfMultiples>(GradientsOfMultiples::kSteps)
      .begins(4)
      .expect("gradient of y", 2)
      .expect("gradient of 3y", 4)
      .caught_by("backward.in-forward")
      .not_in_training(
          "a backward pass from inside of a larger model uses up the tape below it, so that the "
          "first step ends with an error and not with wrong gradients");
}

}  // namespace faultline::lab
