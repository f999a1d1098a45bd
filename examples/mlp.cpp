// Teaches: tensors, a module, the tape and an optimizer. A network of two layers learns sin(x).
#include <cmath>

#include "autograd/functional.h"
#include "example.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

using namespace faultline;

void train_mlp(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv, {.about = "Learns sin(x) on [-3, 3].", .steps = 500}, &train_mlp);
}

// A module owns its parameters; its children's names become theirs: "hidden.weight", ...
class Network : public nn::Module {
 public:
  explicit Network(uint64_t seed) {
    add_child("hidden", hidden_);
    add_child("output", output_);
    draw_weights(*this, 0.5, seed);
  }

  Tensor operator()(const Tensor& x) {
    return unit([&] { return output_(tanh(hidden_(x))); });
  }

 private:
  nn::Linear hidden_{1, 32};
  nn::Linear output_{32, 1};
};

void train_mlp(Example& example) {
  Network network(example.seed());
  const std::vector<Parameter*> parameters = network.parameters();
  optim::AdamW optimizer(optim::decay_groups(parameters, /*weight_decay=*/0));
  const Tensor x = reshape(affine(arange(64, 0, 1, DType::f32), 6.0 / 63, -3), {64, 1});
  const Tensor target = sin(x);
  constexpr double kRate = 3e-2;

  while (example.next_step()) {
    // A seam: the framework's own way of clearing, unless --fault put another one there.
    example.context().seams.call<train::ZeroGradSeam>(network);
    // An event: what the detectors see of a loop.
    example.context().events.emit(train::StepBeginEvent{example.step(), parameters});
    const Tensor loss = mean(square(network(x) - target));
    backward(loss);
    optimizer.step(kRate);
    example.end_step(loss.item<double>(), kRate);
  }
}
