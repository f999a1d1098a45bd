// A two-layer network learns sin(x) on [-3, 3]: tensors, the tape, and an optimizer, in one file.
#include <fmt/core.h>

#include <cmath>

#include "autograd/functional.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

using namespace faultline;

namespace {

class Network : public nn::Module {
 public:
  Network() {
    add_child("hidden", hidden_);
    add_child("output", output_);
    const NoGrad off;
    uint64_t stream = 0;
    for (Parameter* parameter : parameters()) {
      if (parameter->decay() == Decay::no) continue;  // biases start at 0
      copy_(parameter->value(), normal(parameter->value().shape(), 0, 0.5, /*seed=*/1, ++stream));
    }
  }

  Tensor operator()(const Tensor& x) {
    return unit([&] { return output_(tanh(hidden_(x))); });
  }

 private:
  nn::Linear hidden_{1, 32};
  nn::Linear output_{32, 1};
};

}  // namespace

int main() {
  Context context;
  ContextGuard guard(context);

  Network network;
  optim::AdamW optimizer(optim::decay_groups(network.parameters(), /*weight_decay=*/0));
  const Tensor x = reshape(affine(arange(64, 0, 1, DType::f32), 6.0 / 63, -3), {64, 1});
  const Tensor target = sin(x);

  double loss_now = 0;
  for (int step = 1; step <= 500; ++step) {
    network.clear_gradients();
    const Tensor loss = mean(square(network(x) - target));
    backward(loss);
    optimizer.step(/*lr=*/3e-2);
    loss_now = loss.item<double>();
    if (step % 100 == 0) fmt::print("step {:3}  mean squared error {:.6f}\n", step, loss_now);
  }
  // sin is smooth and the network wide enough: a wrong gradient ends far above a thousandth.
  return loss_now < 1e-3 ? 0 : 1;
}
