#include <bit>
#include <cmath>
#include <map>
#include <span>

#include "autograd/functional.h"
#include "core/float16.h"
#include "core/rng.h"
#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "lab/case.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

// ---- the wrong code -----------------------------------------------------------------------------

// The update in f32 by the framework's own kernel, and then what is kept of each weight.
template <class Keep>
void update_and_keep(const KernelArgs& args, Keep keep) {
  kernels::run_adamw(args);
  const auto* const table = reinterpret_cast<const UpdateTensors*>(args.inputs[0].data);
  const auto rows = static_cast<size_t>(args.inputs[0].numel()) / sizeof(UpdateTensors);
  uint64_t place = 0;
  for (const UpdateTensors& t : std::span(table, rows)) {
    for (float& weight : std::span(t.parameter, static_cast<size_t>(t.count))) {
      weight = keep(weight, place++);
    }
  }
}

// page: begin
// The model is in bf16, and so is the only copy of its weights: the update is right and in f32, and
// rounded to nearest when it is written back.
void update_bf16_weights(const KernelArgs& args) {
  update_and_keep(args,
                  [](float weight, uint64_t) { return static_cast<float>(bfloat16(weight)); });
}
constexpr KernelRecord kBf16Weights{"adamw/bf16 weights", &update_bf16_weights};

std::shared_ptr<void> keep_weights_in_bf16(Context& context) {
  return context.seams.replace<optim::UpdateKernelSeam>(
      [](const KernelRecord&) { return &kBf16Weights; });
}
// page: end

// ---- what people do about it --------------------------------------------------------------------

// Rounds up with the probability of what lies above the lower neighbour, so that the mean is right.
// 1 - beta2^t is another number at every step, and numbers the random sequence.
void update_stochastically(const KernelArgs& args) {
  const RandomSequence random(std::bit_cast<uint64_t>(args.inputs[1].as<double>()[1]),
                              stream_of("stochastic rounding"));
  update_and_keep(args, [&](float weight, uint64_t place) {
    const auto below = static_cast<uint32_t>(random.bits(place) & 0xffff);
    return std::bit_cast<float>((std::bit_cast<uint32_t>(weight) + below) & 0xffff0000U);
  });
}
constexpr KernelRecord kStochastic{"adamw/stochastic rounding", &update_stochastically};

std::shared_ptr<void> round_stochastically(Context& context) {
  return context.seams.replace<optim::UpdateKernelSeam>(
      [](const KernelRecord&) { return &kStochastic; });
}

Tensor in_bf16(const Tensor& x) { return cast(cast(x, DType::bf16), DType::f32); }

// The optimizer's own copy of the weights between the steps. The model sees it in bf16.
class CopiesOfWeights {
 public:
  using Keep = Tensor (*)(const Tensor& updated);
  explicit CopiesOfWeights(Keep keep) : keep_(keep) {}

  // Before an update: the weights are those of the copy.
  void bring_back() {
    const NoGrad off;
    for (const auto& [parameter, copy] : std::exchange(copies_, {})) {
      copy_(parameter->value().detach(), copy);
    }
  }
  // After it: keeps what it has to, and leaves bf16 weights.
  void put_away(const optim::OptimizerEvent& event) {
    const NoGrad off;
    for (const optim::ParameterGroup& group : event.groups) {
      for (const Parameter* parameter : group.parameters) {
        const Tensor weights = parameter->value().detach();
        copies_[parameter] = keep_(weights);
        copy_(weights, in_bf16(weights));
      }
    }
  }

 private:
  Keep keep_;
  std::map<const Parameter*, Tensor> copies_;
};

// Four more bytes per weight: the whole f32 number.
Tensor master_copy(const Tensor& updated) { return clone(updated); }

// Two more bytes per weight: what bf16 lost, itself in bf16. This is Kahan's summation.
Tensor with_compensation(const Tensor& updated) {
  const Tensor weights = in_bf16(updated);
  return weights + in_bf16(updated - weights);
}

Plant keep_copies(CopiesOfWeights::Keep keep) {
  return [keep](Context& context) -> std::shared_ptr<void> {
    const auto copies = std::make_shared<CopiesOfWeights>(keep);
    using Guards = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    return std::make_shared<Guards>(
        context.seams.replace<optim::UpdateKernelSeam>([copies](const KernelRecord& own) {
          copies->bring_back();
          return &own;
        }),
        context.events.subscribe<optim::OptimizerEvent>(
            [copies](const optim::OptimizerEvent& event) { copies->put_away(event); }));
  };
}

// ---- the run ------------------------------------------------------------------------------------

// Weights as a fresh GPT-2 has them, N(0, 0.02), in bf16, each under a constant gradient. AdamW
// moves all of them down by lr = 1e-5 a step.
class FreshWeights : public Experiment {
 public:
  static constexpr int64_t kSteps = 1000;

  explicit FreshWeights(const RunOptions& options)
      : first_(in_bf16(normal({kCount}, 0, 0.02, options.seed, stream_of("weights")))),
        weights_("weights", clone(first_), Decay::no),
        optimizer_({{{&weights_}, 0}}) {}

  void step(int64_t step) override {
    weights_.clear_gradient();
    backward(sum(weights_.value() * 0.1));
    optimizer_.step(kLearningRate);
    if (step % kDrawEvery != 0) return;
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(-mean_movement());
  }
  void report(Metrics& metrics) override {
    metrics.measure("unchanged, %", 100 * share_unchanged());
    metrics.measure("moved, % of owed",
                    -100 * mean_movement() / (kLearningRate * static_cast<double>(kSteps)));
    metrics.add(curve_);
  }

 private:
  static constexpr int64_t kCount = 4096;
  static constexpr double kLearningRate = 1e-5;
  static constexpr int64_t kDrawEvery = 20;

  double share_unchanged() const {
    const Tensor same = cast(equal(weights_.value().detach(), first_), DType::f64);
    return mean(same).item<double>();
  }
  double mean_movement() const {
    return mean(cast(weights_.value().detach() - first_, DType::f64)).item<double>();
  }

  Tensor first_;
  Parameter weights_;
  optim::AdamW optimizer_;
  Curve curve_{"mean movement", {}, {}};
};

const char* const kSampling =
    "the share of 4,096 random weights has a standard deviation of 0.56; this is five of them";

Variant& add_variant(Fault& fault, const char* name, const char* title) {
  return fault.variant(name, title)
      .wrong(&keep_weights_in_bf16)
      .run<FreshWeights>(FreshWeights::kSteps)
      .expect_within("unchanged, %", 84.5, 2.8, kSampling)
      .expect_within("moved, % of owed", 6.05, 1.2,
                     "15.5 % of the weights move, by 2^-8 on average, until they are at -2^-8; "
                     "sampled as above")
      .caught_by("update.lost")
      .not_in_training("its training form comes with mixed precision");
}

}  // namespace

FAULT(bf16_weights_frozen) {
  Fault& fault = lab.fault(
      {.id = "bf16.weights-frozen",
       .title = "Weights kept in bf16 do not move: the update is less than half their spacing",
       .domain = "precision",
       .mechanism =
           "A bf16 number w has neighbours at a distance of 2^-8 to 2^-7 of its size. An update "
           "below half of that rounds back to w, at this step and at every later one: nothing is "
           "kept that could add up. Weights of a fresh model are N(0, 0.02). At an update of 1e-5 "
           "all those above 2^-8 = 0.0039 stand still, for half their spacing is 2^-16 = 1.5e-5 or "
           "more: 84.5 % of the weights. At 1e-4 it is 11.8 %, at 1e-6 98.1 %. The few that move "
           "do so until they are as large as 2^-8, and stop there. Gains of norms start at 1, with "
           "a half spacing of 2^-9 below it: they move at no learning rate below 0.002.",
       .symptom = "The loss falls at first and then flattens out above that of an f32 run, most "
                  "of all with low learning rates, warm-up and fine-tuning. Nothing is NaN, "
                  "gradients and moments look well, a higher learning rate seems to help.",
       .truth =
           "bf16 is wide enough for weights that are read, not for weights that are summed up "
           "over thousands of steps. Mixed precision never meant to keep the only copy in 16 bits. "
           "Moments suffer too: with beta2 = 0.999 in bf16, 0.999 v rounds back to v.",
       .fix =
           "A master copy in f32: exact, 4 more bytes per weight. Kahan summation: 2 more bytes "
           "per weight for what was lost, and about 16 bits of significand. Stochastic rounding: "
           "no memory, a random number per weight and step, right on average with a noise of up to "
           "one spacing at each step. The three variants differ in this remedy only.",
       .sources =
           {"torchao pull request 1124 (2024-10-21): stochastic rounding for bf16 weights, because "
            "updates below 1e-3 of a weight are lost. https://github.com/pytorch/ao/pull/1124",
            "torchtune issue 2254 (2025-01): very bad convergence with bf16. "
            "https://github.com/meta-pytorch/torchtune/issues/2254",
            "Zamirai et al.: Revisiting BFloat16 Training (2020). "
            "https://arxiv.org/abs/2010.06192",
            "torchdistx pull request 52 (2022-2023): an optimizer for bf16 weights with Kahan "
            "summation. https://github.com/pytorch/torchdistx/pull/52"},
       .look_alikes =
           "Weights that do not move at all, small ones included, have no gradient, a learning "
           "rate of 0 or an optimizer that holds other tensors. A step counter that stands still "
           "makes all updates smaller by one factor. What refutes this fault: the weights have "
           "more than 8 significant bits.",
       .exercise = "Which learning rate moves a bf16 weight of 0.02 under a constant gradient, and "
                   "what becomes of a weight of 0.02 at half that learning rate after 1,000 steps?",
       .answer =
           "0.02 lies between 2^-6 and 2^-5, where the spacing is 2^-13 = 1.22e-4. An update "
           "needs more than half of it, 6.1e-5. At 3.05e-5 the weight is where it was after any "
           "number of steps; in f32 it would have moved by 0.03, more than its own size."});

  add_variant(fault, "", "Weights kept in bf16 do not move; a master copy in f32 does")
      .remedy(keep_copies(&master_copy))
      .fixed_within(0.002,
                    "the model sees the master copy rounded to bf16, by 2^-9 of each weight "
                    "at most, up as often as down");
  add_variant(fault, "kahan", "The same, repaired by Kahan summation")
      .remedy(keep_copies(&with_compensation))
      .fixed_within(0.01,
                    "the compensation has 8 bits too: at a weight of 0.02 its own rounding is "
                    "up to 1.2 % of an update, and less on average");
  add_variant(fault, "stochastic", "The same, repaired by stochastic rounding")
      .remedy(&round_stochastically)
      .fixed_within(0.01,
                    "a weight's way of 0.01 in spacings of 1.2e-4 has a deviation of 11 %, "
                    "the mean of 4,096 of them 0.17 %; this is five of those");
}

}  // namespace faultline::lab
