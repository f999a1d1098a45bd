#include <array>
#include <cmath>
#include <span>

#include "autograd/functional.h"
#include "core/float16.h"
#include "kernels/attributes.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

double in_fp16(double value) { return static_cast<double>(float16(value)); }

// page: begin
// AdamW where its state has the type of fp16 weights: moments, epsilon and denominator are fp16.
void update_in_fp16(float& weight, float gradient, float& m, float& v, double epsilon,
                    const AdamwAttributes& a, const double* corrections, double lr) {
  m = static_cast<float>(in_fp16(a.beta1 * m + (1 - a.beta1) * gradient));
  v = static_cast<float>(in_fp16(a.beta2 * v + (1 - a.beta2) * gradient * gradient));
  const double denominator = in_fp16(std::sqrt(v / corrections[1]) + in_fp16(epsilon));
  const double update = lr * (m / corrections[0]) / denominator;
  weight = static_cast<float>(weight * (1 - lr * a.weight_decay) - update);
}
// page: end

// What people do about it where weights stay in fp16: moments in f32, the whole update computed
// there, and the weight alone rounded as it is written back.
void update_in_f32(float& weight, float gradient, float& m, float& v, double epsilon,
                   const AdamwAttributes& a, const double* corrections, double lr) {
  m += static_cast<float>(1 - a.beta1) * (gradient - m);
  v += static_cast<float>(1 - a.beta2) * (gradient * gradient - v);
  const float mean = m / static_cast<float>(corrections[0]);
  const float root = std::sqrt(v / static_cast<float>(corrections[1]));
  const float update = static_cast<float>(lr) * mean / (root + static_cast<float>(epsilon));
  weight =
      static_cast<float>(float16(weight * static_cast<float>(1 - lr * a.weight_decay) - update));
}

using UpdateWeight = decltype(update_in_fp16);

template <UpdateWeight* update>
void update_all(const KernelArgs& args, double epsilon) {
  const auto* const table = reinterpret_cast<const UpdateTensors*>(args.inputs[0].data);
  const auto rows = static_cast<size_t>(args.inputs[0].numel()) / sizeof(UpdateTensors);
  const auto factor =
      args.inputs[3].defined() ? static_cast<float>(*args.inputs[3].as<double>()) : 1.0F;
  for (const UpdateTensors& t : std::span(table, rows)) {
    for (int64_t i = 0; i < t.count; ++i) {
      update(t.parameter[i], factor * t.gradient[i], t.first[i], t.second[i], epsilon,
             args.attributes.as<AdamwAttributes>(), args.inputs[1].as<double>(),
             *args.inputs[2].as<double>());
    }
  }
}

template <UpdateWeight* update>
void with_own_epsilon(const KernelArgs& args) {
  update_all<update>(args, args.attributes.as<AdamwAttributes>().epsilon);
}
constexpr KernelRecord kFp16{"adamw/fp16", &with_own_epsilon<&update_in_fp16>};
constexpr KernelRecord kF32{"adamw/fp16, moments in f32", &with_own_epsilon<&update_in_f32>};

// The advice of many threads: an epsilon that fp16 can hold. 1e-7 becomes 2^-23.
void with_larger_epsilon(const KernelArgs& args) { update_all<&update_in_fp16>(args, 1e-7); }
constexpr KernelRecord kLargerEpsilon{"adamw/fp16, epsilon 1e-7", &with_larger_epsilon};

Plant replace_update(const KernelRecord& kernel) {
  return [&kernel](Context& context) {
    return context.seams.replace<optim::UpdateKernelSeam>(
        [&kernel](const KernelRecord&) { return &kernel; });
  };
}

// Four weights with constant gradients of very different size. AdamW moves each by lr per step,
// whatever its gradient, as long as that is far above epsilon; the last has none, like a row of an
// embedding whose token does not occur.
class FourGradients : public TrainedExperiment {
 public:
  explicit FourGradients(const RunOptions&)
      : weights_("weights", ones({4}), Decay::no), optimizer_({{{&weights_}, 0}}) {}

  void step(int64_t step) override {
    weights_.clear_gradient();
    backward(sum(weights_.value() * tensor<float>({0.1F, 1e-5F, 1e-8F, 0})));
    optimizer_.step(kLearningRate);
    const std::vector<double> weights = weights_.value().to_vector<double>();
    for (size_t i = 0; i < curves_.size(); ++i) {
      if (!std::isfinite(weights[i])) continue;
      curves_[i].x.push_back(static_cast<double>(step));
      curves_[i].y.push_back(weights[i]);
    }
  }
  void report(Metrics& metrics) override {
    const std::vector<double> weights = weights_.value().to_vector<double>();
    for (size_t i = 0; i < curves_.size(); ++i) {
      metrics.measure(curves_[i].name, weights[i]);
      metrics.add(curves_[i]);
    }
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }

  static constexpr double kLearningRate = 1e-3;

  Parameter weights_;
  optim::AdamW optimizer_;
  // The weights by their gradients.
  std::array<Curve, 4> curves_{
      Curve{"w(0.1)", {}, {}}, {"w(1e-5)", {}, {}}, {"w(1e-8)", {}, {}}, {"w(0)", {}, {}}};
};

}  // namespace

FAULT(adam_fp16_eps) {
  Fault& fault = lab.fault(
      {.id = "adam.fp16-eps",
       .title = "Adam's epsilon is 0 in fp16, and the first update divides by 0",
       .domain = "precision",
       .mechanism =
           "Adam divides by sqrt(v) + epsilon. Epsilon, 1e-8, is there for the weight whose "
           "gradient is 0. The smallest fp16 number is 2^-24 = 5.96e-8, and what is below half of "
           "it is 0: epsilon is gone. So is v = 0.001 g^2 after the first step for every gradient "
           "below 5.5e-3. m = 0.1 g goes later, below 3e-7. What is left is m / 0: infinite for a "
           "gradient of 1e-5, and 0 / 0 = NaN for one of 1e-8 or of 0. bf16 has the exponents of "
           "f32 and is not concerned: 1e-8 is 1.001e-8 there.",
       .symptom =
           "The loss of the first step is right, that of the second is NaN, whatever data and "
           "learning rate are. Gradients were finite, so a check of gradients says nothing. The "
           "first weights to go are rows of the embedding that the batch did not use.",
       .truth =
           "Weights in fp16 bring moments in fp16: most optimizers make their state in the type of "
           "the parameter, and the language's promotion rounds the number 1e-8 to it. A larger "
           "epsilon, the usual advice, ends the NaN and not the fault: v is still 0, so epsilon "
           "alone divides. With 1e-7 a gradient of 1e-5 moves its weight by up to 84 times the "
           "learning rate: the claimed run shows it.",
       .fix =
           "Keep moments, epsilon and a master copy of the weights in f32, and compute the whole "
           "update there. fp16 training without it needs an epsilon of about 1e-4, which turns "
           "Adam into a momentum method for most weights.",
       .sources =
           {"optax issue 1754 (2026-08-16): adam, amsgrad, adabelief and yogi give NaN for a zero "
            "gradient in float16. https://github.com/google-deepmind/optax/issues/1754",
            "chainer issue 6299 (2019-02-19), fixed by pull request 6442: the update is computed "
            "in f32. https://github.com/chainer/chainer/issues/6299",
            "Optimisers.jl issue 167 (2024-02-17): weights become infinite in Float16. "
            "https://github.com/FluxML/Optimisers.jl/issues/167"},
       .look_alikes =
           "A step counter that reads 0 also divides by 0 at the first update, but for every "
           "weight, whatever its gradient, and in f32 as well. A gradient that overflowed is not "
           "finite before the update. A learning rate that is too high needs many steps. What "
           "refutes this fault: sqrt(v) + epsilon is positive in the type in which it is computed.",
       .exercise = "Weights in fp16, epsilon 1e-7, a first gradient of 1e-3. By how many learning "
                   "rates does the weight move, and by how many should it?",
       .answer =
           "v = 0.001 * 1e-6 = 1e-9 is 0 in fp16. Epsilon is 2^-23 = 1.19e-7. The update is lr * "
           "1e-3 / 1.19e-7, about 8,400 learning rates; it should be one."});

  fault.only_variant()
      .wrong(replace_update(kFp16))
      .run<FourGradients>(20)
      .remedy(replace_update(kF32))
      .fixed_within(
          5e-4,
          "fp16 numbers below 1 are 2^-11 apart, so each update of 1e-3 moves a weight by "
          "2^-10, which is 2.3e-5 too little, and 4.7e-4 after 20 steps")
      .expect("w(1e-5)", -INFINITY)
      .expect("w(1e-8)", NAN)
      .expect("w(0)", NAN)
      .claimed("an epsilon that fp16 can hold, 1e-7", replace_update(kLargerEpsilon))
      .caught_by("denominator.zero")
      .not_in_training("its training form comes with mixed precision");
}

}  // namespace faultline::lab
