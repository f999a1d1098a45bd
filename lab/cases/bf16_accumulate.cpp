#include "autograd/functional.h"
#include "core/rng.h"
#include "lab/case.h"

namespace faultline::lab {
namespace {

// The wrong code: the gradient is kept in bf16 and each contribution is rounded into it.
Tensor accumulate_in_bf16(const Tensor& held, const Tensor& contribution) {
  const Tensor rounded = cast(contribution, DType::bf16);
  return held.defined() ? add(held, rounded) : rounded;
}

constexpr int kMicroBatches = 1024;
constexpr double kContribution = 0x1p-10;  // of each micro-batch, exact in every float type

// One step of 1,024 micro-batches. The loss is linear, so each one adds exactly 2^-10 to the
// gradient of every weight, whatever the weights are.
void accumulate(const RunOptions& options, Metrics& metrics) {
  const Tensor weights = uniform({4}, -1, 1, options.seed, stream_of("weights"));
  set_requires_grad(weights);
  for (int i = 0; i < kMicroBatches; ++i) backward(sum(weights * kContribution));
  metrics.measure("gradient", gradient(weights).to_vector<double>()[0]);
}

}  // namespace

FAULT(bf16_accumulate) {
  Fault& fault = lab.fault(
      {.id = "bf16.accumulate",
       .title = "A gradient accumulated in bf16 stops growing",
       .domain = "precision",
       .seed = "000 4.3",
       .mechanism =
           "bf16 has 8 bits of significand. An addend below half an ulp of the sum changes "
           "nothing: at 0.25 an ulp is 2^-9, so adding 2^-10 is exactly a tie and rounds to "
           "even, back to 0.25. 1,024 micro-batches that each contribute 2^-10 give 0.25 in "
           "place of 1; all but the first 256 of them are lost. f32 keeps 24 bits and gives "
           "exactly 1.",
       .symptom =
           "Gradients, and so updates, are too small by a factor that grows with the number of "
           "micro-batches; nothing is NaN and nothing overflows. The more finely a batch is split, "
           "the less it counts.",
       .article_says =
           "bf16 reaches only from 5.96e-8 to 65504, so rounding errors grow in accumulation until "
           "they under- or overflow and become NaN; torch._C._set_backtrace_enabled finds the "
           "node.",
       .truth =
           "That is the range of fp16. bf16 has the exponent range of f32, so accumulation hardly "
           "ever overflows; it loses significance. The function named there does not exist, and "
           "set_detect_anomaly looks for NaN in backward only, so it stays silent here.",
       .fix =
           "Accumulate gradients in f32 (a main_grad buffer), also where the forward pass is bf16. "
           "Where memory forbids it: Kahan summation or stochastic rounding.",
       .sources = {
           "DeepSpeed issue 2768 (2023): accumulation in bf16 diverges where fp16 does not; led to "
           "pull request 2352. https://github.com/microsoft/DeepSpeed/issues/2768",
           "Megatron-LM issues 372 and 502 (2023): bf16 now forces f32 accumulation and "
           "all-reduce. https://github.com/NVIDIA/Megatron-LM/issues/372",
           "Liger-Kernel issue 512 (2025): fused cross-entropy accumulates its weight gradient by "
           "chunks in bf16. https://github.com/linkedin/Liger-Kernel/issues/512"}});

  fault.variant("swallow", "1,024 gradients of 2^-10 summed in bf16 give 0.25")
      .wrong([](Context& context) {
        return context.seams.replace<AccumulateSeam>(&accumulate_in_bf16);
      })
      .run(&accumulate)
      .expect("gradient", 0.25)
      .caught_by("accumulate.absorbed")
      .not_in_training("its training form comes with mixed precision");
}

}  // namespace faultline::lab
