#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/float16.h"
#include "kernels/kernels.h"
#include "lab/case.h"
#include "lab/trained_experiment.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

// ---- the wrong code -----------------------------------------------------------------------------

// page: begin
// The counter is made in the default dtype of the program.
template <class T>
void advance_rounded(const KernelArgs& args) {
  T& counter = *args.outputs[0].as<T>();
  counter = T(static_cast<float>(counter) + 1);
}
constexpr KernelRecord kAdvanceBf16{"advance_counter/bf16", &advance_rounded<bfloat16>};
constexpr KernelRecord kAdvanceFp16{"advance_counter/fp16", &advance_rounded<float16>};

std::shared_ptr<void> count_in_bf16(Context& context) {
  return context.seams.replace<optim::StepCounterSeam>([] {
    return optim::StepCounter{DType::bf16, &kAdvanceBf16};
  });
}
// page: end

// The counter wraps around as unsigned addition does, and as signed addition in practice.
template <class T>
void advance_wrapping(const KernelArgs& args) {
  T& counter = *args.outputs[0].as<T>();
  counter = static_cast<T>(static_cast<std::make_unsigned_t<T>>(counter) + 1);
}
constexpr KernelRecord kAdvanceInt32{"advance_counter/int32", &advance_wrapping<int32_t>};
constexpr KernelRecord kAdvanceInt64{"advance_counter/int64", &advance_wrapping<int64_t>};

// 1 - beta^t for whatever the counter says. The framework's own kernel refuses a t below 1.
void correct_for_any_step(const KernelArgs& args) {
  const auto betas = args.attributes.as<BiasCorrectionAttributes>();
  const TensorView& counter = args.inputs[0];
  const double t = counter.dtype == DType::i32 ? *counter.as<int32_t>()
                                               : static_cast<double>(*counter.as<int64_t>());
  double* corrections = args.outputs[0].as<double>();
  corrections[0] = 1 - std::pow(betas.beta1, t);
  corrections[1] = 1 - std::pow(betas.beta2, t);
}
constexpr KernelRecord kCorrectForAnyStep{"bias_corrections/unchecked", &correct_for_any_step};

Plant count_unchecked(optim::StepCounter counter) {
  return [counter](Context& context) -> std::shared_ptr<void> {
    using Guards = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    return std::make_shared<Guards>(
        context.seams.replace<optim::StepCounterSeam>([counter] { return counter; }),
        context.seams.replace<optim::CorrectionKernelSeam>(
            [](const KernelRecord&) { return &kCorrectForAnyStep; }));
  };
}

// ---- the run ------------------------------------------------------------------------------------

// One parameter, p = 1, under a constant gradient of 0.1: AdamW then moves it by lr a step as long
// as counter and moments belong together.
class ConstantGradient : public TrainedExperiment {
 public:
  explicit ConstantGradient(const RunOptions&)
      : parameter_("p", ones({1}), Decay::no), optimizer_({{{&parameter_}, 0}}) {}
  // Counts on from `counted`, as a restored run does.
  ConstantGradient(const RunOptions& options, int64_t counted) : ConstantGradient(options) {
    optimizer_.set_counted(counted);
  }

  void step(int64_t step) override {
    parameter_.clear_gradient();
    backward(parameter_.value() * 0.1);
    optimizer_.step(1e-3);
    if (step % kDrawEvery != 0) return;
    curve_.x.push_back(static_cast<double>(step));
    curve_.y.push_back(parameter_.value().item<double>());
  }
  void load(const State& state) override {
    // The count so far is right, only its type is not. One that began at -1 has counted nothing.
    State right = state;
    Tensor& counter = right.tensors["optimizer.counter"];
    counter = maximum(cast(counter, DType::i64), zeros({1}, DType::i64));
    TrainedExperiment::load(right);
  }
  void report(Metrics& metrics) override {
    metrics.count("counted", optimizer_.counted());
    metrics.measure("p", parameter_.value().item<double>());
    if (!curve_.x.empty()) metrics.add(curve_);
  }

 private:
  optim::Optimizer& optimizer() override { return optimizer_; }

  static constexpr int64_t kDrawEvery = 20;

  Parameter parameter_;
  optim::AdamW optimizer_;
  Curve curve_{"p", {}, {}};
};

BuildExperiment counting_from(int64_t counted) {
  return [counted](const RunOptions& options) {
    return std::make_unique<ConstantGradient>(options, counted);
  };
}

FaultText step_counter_text() {
  return {
      .id = "adamw.step-counter",
      .title = "AdamW's step counter does not count the steps",
      .domain = "optimizer",
      .seed = "004 3.1",
      .mechanism =
          "AdamW divides its moments by c1 = 1 - 0.9^t and c2 = 1 - 0.999^t; t counts steps. With "
          "8 bits of significand 256 + 1 = 257 lies halfway between 256 and 258 and rounds to "
          "even: bf16 stays at 256, fp16 (11 bits) at 2,048. Then c2 = 0.225957 stands for a "
          "number that goes to 1, and every update is sqrt(0.225957) = 0.475350 of what it should "
          "be, for ever. An int32 wraps from 2,147,483,647 to -2,147,483,648: 0.9^-2147483648 is "
          "inf, c1 = c2 = -inf. Where v is divided by c2 after the root, sqrt(-inf) = NaN. Where "
          "it is divided under the root, m / c1 = v / c2 = -0 and the update is -0: nothing but "
          "weight decay moves the weights. A first step that sees t = 0 has c1 = c2 = 0 and "
          "computes inf / inf.",
      .symptom =
          "A stalled counter: the loss still falls, but slowly, as if the learning rate had been "
          "halved after some hundred steps. With lr 1e-3, a constant gradient of 0.1 and p = 1, p "
          "is 0.2041 after 1,000 steps in place of 0.0000. A wrapped or zero one: NaN in every "
          "parameter after one step, or (the other formula) weights that stop.",
      .article_says =
          "The int64 counter overflows under CUDA graphs after very many replays, wraps to 0, and "
          "the optimizer then takes the first-step branch with cleared gradients.",
      .truth =
          "2^63 steps of a microsecond are 292,271 years; the wrap goes to -2^63 and not to 0; and "
          "there is no such branch. PyTorch keeps the counter as float32, which stalls at "
          "16,777,216, long after 1 - 0.999^t has become 1 in f32 (t = 17,321): harmless for "
          "AdamW. What really happens is a counter made or loaded in the dtype of the parameters, "
          "a 32-bit one that counts samples or was restored, and a first step numbered 0. At 2^63 "
          "- 1 the counter here stays and the step's event reports it by equal counts before and "
          "after (as a double, 9223372036854775808); both corrections have been exactly 1 since "
          "step 37,412. Its corrections refuse a step below 1 by an error.",
      .fix =
          "Count in int64 on the device with an addition that saturates, advance before the "
          "first update, compute both corrections in double from it, and never cast a step "
          "counter when a checkpoint is loaded.",
      .sources =
          {"torchao pull request 4915 (2026-09-18): a counter made by torch.tensor(0.0) under a "
           "bf16 default dtype stalls at 256. https://github.com/pytorch/ao/pull/4915",
           "PyTorch issue 74424 (2022) and pull request 75214: optimizer state is cast to the "
           "parameter's dtype on load. https://github.com/pytorch/pytorch/issues/74424",
           "asi issue 334 (2026-08-16): int32 step counters wrap to -2147483648, and a parameter "
           "can become NaN. https://github.com/SlopDotCash/asi/issues/334",
           "burn issue 834 (2023-09-28) and pull request 888: AdamW began at time 0 and gave NaN. "
           "https://github.com/tracel-ai/burn/issues/834"},
      .look_alikes =
          "A learning rate halved by a schedule slows training alike: then the counter still "
          "advances by one a step. A bias correction that is left out altogether makes the first "
          "updates 3.16 times too large, and heals within some thousand steps. A "
          "NaN from an overflow begins in a forward or backward op; here the first NaN is written "
          "by the optimizer, and every gradient of that step is finite. A resumed run starts with "
          "a high counter and is healthy as long as it advances.",
      .exercise =
          "Divide v by c2 under the root, as some fused kernels do: p -= lr (m / c1) / "
          "(sqrt(v / c2) + 1e-8). What does the step after 2,147,483,647 do to p in int32, "
          "and would a check for NaN find it?",
      .answer =
          "c1 = c2 = -inf, so m / c1 = -0 and v / c2 = -0; sqrt(-0) = -0; the update is "
          "-0 / 1e-8 = -0 and p stays as it is. All is finite, so no such check fires; the "
          "counter does show it, before = 2147483647 and after = -2147483648. From then on "
          "|t| shrinks by one a step, and for two thousand million steps nothing moves but "
          "by weight decay."};
}

constexpr int64_t kLargestCount32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kLargestCount64 = std::numeric_limits<int64_t>::max();
constexpr double kPoisoned = std::numeric_limits<double>::quiet_NaN();

}  // namespace

FAULT(adamw_step_counter) {
  Fault& fault = lab.fault(step_counter_text());

  fault.variant("bf16", "A step counter in bf16 stops at 256")
      .wrong(&count_in_bf16)
      .run<ConstantGradient>(1000)
      .expect("counted", 256)
      .expect_within("p", 0.204108, 3e-5, "p is rounded to f32 1,000 times, by at most 2^-25 each")
      .caught_by("counter.advances")
      .in_training({.steps = 400});

  fault.variant("fp16", "A step counter in fp16 stops at 2,048")
      .wrong([](Context& context) {
        return context.seams.replace<optim::StepCounterSeam>([] {
          return optim::StepCounter{DType::f16, &kAdvanceFp16};
        });
      })
      .run<ConstantGradient>(2500)
      .expect("counted", 2048)
      .expect_within("p", -1.493610, 1.5e-4,
                     "p is rounded to f32 2,500 times, by at most 2^-24 each")
      .caught_by("counter.advances")
      .in_training({.steps = 2200});

  // 8 steps below the end; the eighth wraps.
  fault.variant("int32-wrap", "A step counter in int32 wraps to -2,147,483,648")
      .wrong(count_unchecked({DType::i32, &kAdvanceInt32}))
      .run(10, counting_from(kLargestCount32 - 7))
      .expect("counted", -2147483646)
      .expect("p", kPoisoned)
      .caught_by("counter.advances")
      .in_training({.steps = 200, .needs = {{"counted_steps", "2147483600"}}});

  fault.variant("step-zero", "The first AdamW step is numbered 0")
      .wrong(count_unchecked({DType::i64, &kernels::advance_counter, -1}))
      .run<ConstantGradient>(10)
      .starts_again(
          "its first step leaves NaN; corrections for t + 1 mend the updates, but the counter "
          "stays one behind (9 after 10 steps), so such programs are mended and started again")
      .expect("counted", 9)
      .expect("p", kPoisoned)
      .caught_by("counter.advances")
      .in_training({.steps = 200});

  // The article's claim, granted: as if 2^63 - 8 steps had been done. The eighth from there wraps.
  fault.variant("int64-wrap", "A step counter in int64 wraps to -2^63")
      .wrong(count_unchecked({DType::i64, &kAdvanceInt64}))
      .run(8, counting_from(kLargestCount64 - 7))
      .expect("counted", -0x1p63)
      .expect("p", kPoisoned)
      .caught_by("counter.advances")
      .in_training({.steps = 200, .needs = {{"counted_steps", "9223372036854775807"}}});
}

}  // namespace faultline::lab
