#include "autograd/functional.h"
#include "core/float16.h"
#include "lab/case.h"
#include "optim/optimizer.h"

namespace faultline::lab {
namespace {

// The wrong code: the step counter is made in the default dtype of a bf16 program.
void advance_bf16(const KernelArgs& args) {
  bfloat16& counter = *args.outputs[0].as<bfloat16>();
  counter = bfloat16(static_cast<float>(counter) + 1);
}
constexpr KernelRecord kAdvanceBf16{"advance_counter/bf16", &advance_bf16};

// One parameter, p = 1, under a constant gradient of 0.1: AdamW then moves it by lr a step as long
// as counter and moments belong together.
class ConstantGradient : public Experiment {
 public:
  explicit ConstantGradient(const RunOptions&)
      : parameter_("p", ones({1}), Decay::no), optimizer_({{{&parameter_}, 0}}) {}

  void step(int64_t) override {
    parameter_.clear_gradient();
    backward(parameter_.value() * 0.1);
    optimizer_.step(1e-3);
  }
  State state() override {
    State state;
    state.tensors["p"] = parameter_.value();
    state.add("optimizer", optimizer_.state());
    return state;
  }
  void load(const State& state) override {
    copy_(parameter_.value().detach(), state.tensor("p"));
    State optimizer = state.part("optimizer");
    // The count so far is right, only its type is not: up to 256 every integer is a bf16 number.
    optimizer.tensors["counter"] = cast(state.tensor("optimizer.counter"), DType::i64);
    optimizer_.load(optimizer);
  }
  void report(Metrics& metrics) override {
    metrics.count("counted", optimizer_.counted());
    metrics.measure("p", parameter_.value().item<double>());
  }

 private:
  Parameter parameter_;
  optim::AdamW optimizer_;
};

}  // namespace

FAULT(adamw_step_counter) {
  Fault& fault = lab.fault(
      {.id = "adamw.step-counter",
       .title = "AdamW's step counter stops, and its bias corrections with it",
       .domain = "optimizer",
       .seed = "004 3.1",
       .mechanism =
           "AdamW divides its moments by 1 - beta^t, where t counts steps. A counter with 8 bits "
           "of significand holds every integer up to 256; 256 + 1 = 257 lies halfway between 256 "
           "and 258 and rounds to even, back to 256. From then on 1 - 0.999^256 = 0.225957 "
           "stands for a number that goes to 1, while the second moment goes on growing towards "
           "its true size. The update becomes sqrt(0.225957) = 0.475350 of what it should be, "
           "for ever.",
       .symptom =
           "The loss still falls, but slowly, as if the learning rate had been halved after some "
           "hundred steps. With lr 1e-3, a constant gradient of 0.1 and p = 1, p is 0.2041 after "
           "1,000 steps in place of 0.0000.",
       .article_says =
           "The int64 counter overflows under CUDA graphs after very many replays, wraps to 0, and "
           "the optimizer then takes the first-step branch with cleared gradients.",
       .truth =
           "2^63 steps of a microsecond are 292,271 years, and there is no such branch. PyTorch "
           "keeps the counter as float32, which stalls at 16,777,216, long after 1 - 0.999^t has "
           "become 1 in f32 (t = 17,321): harmless for AdamW. What really happens is a counter "
           "made or loaded in the dtype of the parameters: it stalls at 256 in bf16 and 2,048 in "
           "fp16.",
       .fix =
           "Count in int64 on the device with an addition that saturates, compute both corrections "
           "in double from it, and never cast a step counter when a checkpoint is loaded.",
       .sources = {
           "torchao pull request 4915 (2026-09): a counter made by torch.tensor(0.0) under a bf16 "
           "default dtype stalls at 256. https://github.com/pytorch/ao/pull/4915",
           "PyTorch issue 74424 (2022) and pull request 75214: optimizer state is cast to the "
           "parameter's dtype on load. https://github.com/pytorch/pytorch/issues/74424",
           "vllm-project/speculators issue 411: step counters are cast back to float32 after load. "
           "https://github.com/vllm-project/speculators/issues/411"}});

  fault.variant("bf16", "A step counter in bf16 stops at 256")
      .wrong([](Context& context) {
        return context.seams.replace<optim::StepCounterSeam>([] {
          return optim::StepCounter{DType::bf16, &kAdvanceBf16};
        });
      })
      .run<ConstantGradient>(1000)
      .expect("counted", 256)
      .expect_within("p", 0.204108, 3e-5, "p is rounded to f32 1,000 times, by at most 2^-25 each")
      .caught_by("counter.advances")
      .in_training({.steps = 400});
}

}  // namespace faultline::lab
