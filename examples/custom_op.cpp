// Teaches: an op of your own, outside of Faultline's tree: rules, kernels, derivative, the row, and
// the checks of its derivative. Softcap then bounds the output of a network.
#include <cmath>
#include <complex>

#include "autograd/functional.h"
#include "autograd/gradcheck.h"
#include "autograd/op.h"
#include "core/threads.h"
#include "example.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

using namespace faultline;

void train_capped(Example& example);
int main(int argc, char** argv) {
  return run_example(argc, argv, {.about = "Checks an op and trains with it.", .steps = 300},
                     &train_capped);
}

// ---- the op -------------------------------------------------------------------------------------

struct SoftcapAttributes {
  double cap;
};

void softcap_shape(std::span<const Tensor> inputs, const Attributes&,
                   std::span<OutputSpec> outputs) {
  require(is_floating(inputs[0].dtype()), "softcap: needs a float dtype, got {}",
          describe(inputs[0]));
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
}

// With y = cap tanh(x / cap), dy/dx = 1 - (y / cap)^2.
Grads softcap_derivative(const Saved& saved, std::span<const Tensor> grads) {
  const double cap = saved.attributes().as<SoftcapAttributes>().cap;
  return {grads[0] * affine(square(saved.output(0) * (1 / cap)), -1, 1)};
}

// One kernel in the scalar `Compute`, for every dtype that converts to it without loss. Kernels
// see any layout; the public function below only hands over contiguous tensors.
template <class Compute>
void softcap_kernel(const KernelArgs& args) {
  const auto cap = static_cast<Compute>(args.attributes.as<SoftcapAttributes>().cap);
  const TensorView& x = args.inputs[0];
  with_type(x.dtype, [&]<class T>() {
    const T* in = x.as<T>();
    T* out = args.outputs[0].as<T>();
    parallel_for(x.numel(), args.threads, [&](int64_t i) {
      out[i] = convert<T>(cap * std::tanh(convert<Compute>(in[i]) / cap));
    });
  });
}

// f64 and, for derivatives by complex step, c128.
void softcap_reference(const KernelArgs& args) {
  if (args.inputs[0].dtype == DType::c128) return softcap_kernel<std::complex<double>>(args);
  softcap_kernel<double>(args);
}

RULES(softcap) = {.shape = softcap_shape, .derivative = softcap_derivative};

// The columns that a row of core/ops.def would have.
constexpr OpDefinition kSoftcap{.name = "softcap",
                                .inputs = 1,
                                .outputs = 1,
                                .differentiable = 0b1,
                                .saved_inputs = 0,
                                .saved_outputs = 0b1,
                                .autocast = Autocast::full,
                                .determinism = Determinism::same_bits,
                                .kernels = Kernels::fast,
                                .rules = &rules_softcap,
                                .cpu = {"softcap", &softcap_kernel<float>},
                                .reference = {"softcap/reference", &softcap_reference}};

// cap * tanh(x / cap): the identity near 0, never beyond +-cap. Gemma 2 bounds its attention scores
// and logits with it (Gemma Team, "Gemma 2: improving open language models at a practical size",
// 2024, section 2). Any shape, any float dtype; cap > 0. Throws InvalidArgument otherwise.
Tensor softcap(const Tensor& x, double cap, Site site = Site::here()) {
  require(cap > 0, "softcap: the cap must be positive, got {}", cap);
  const Tensor input[] = {contiguous(x)};
  return apply(kSoftcap, input, SoftcapAttributes{cap}, site)[0];
}

// ---- its checks ---------------------------------------------------------------------------------

void check_softcap() {
  constexpr double kCap = 1.5;
  const auto capped = [](std::span<const Tensor> in) {
    return softcap(transpose(in[0], 0, 1), kCap);
  };
  const Tensor x = normal({5, 7}, 0, 2, /*seed=*/1, /*stream=*/1, DType::f64);
  for (const auto& check : {&gradcheck, &complex_step}) {
    const GradcheckReport report = check(capped, {x});
    require(report.passed(), "{}", report.text());
    fmt::print("softcap: {}\n", report.text());
  }
  // Three operations of f32, each within two units in the last place of a number up to the cap.
  const auto narrow = softcap(cast(x, DType::f32), kCap).to_vector<double>();
  const auto wide = softcap(cast(cast(x, DType::f32), DType::f64), kCap).to_vector<double>();
  for (size_t i = 0; i < wide.size(); ++i) {
    require(std::abs(narrow[i] - wide[i]) <= 6 * 0x1p-23 * kCap,
            "softcap: element {} is {} in f32 and {} in f64", i, narrow[i], wide[i]);
  }
}

// ---- a network that uses it ---------------------------------------------------------------------

class Capped : public nn::Module {
 public:
  explicit Capped(uint64_t seed) {
    add_child("hidden", hidden_);
    add_child("output", output_);
    draw_weights(*this, 0.5, seed);
  }
  Tensor operator()(const Tensor& x) {
    return unit([&] { return softcap(output_(silu(hidden_(x))), 1); });
  }

 private:
  nn::Linear hidden_{1, 24};
  nn::Linear output_{24, 1};
};

// A square wave is what a bounded output is good at.
void train_capped(Example& example) {
  check_softcap();
  Capped network(example.seed());
  const std::vector<Parameter*> parameters = network.parameters();
  optim::AdamW optimizer(optim::decay_groups(parameters, /*weight_decay=*/0));
  const Tensor x = reshape(affine(arange(64, 0, 1, DType::f32), 6.0 / 63, -3), {64, 1});
  const Tensor target = where(less(sin(x * 2), zeros({1})), full({1}, -1), ones({1}));
  constexpr double kRate = 3e-2;

  while (example.next_step()) {
    example.context().seams.call<train::ZeroGradSeam>(network);
    example.context().events.emit(train::StepBeginEvent{example.step(), parameters});
    const Tensor loss = mean(square(network(x) - target));
    backward(loss);
    optimizer.step(kRate);
    example.end_step(loss.item<double>(), kRate);
  }
}
