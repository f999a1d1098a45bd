#include <cstdint>
#include <vector>

#include "autograd/functional.h"
#include "lab/case.h"
#include "nn/lora.h"
#include "train/events.h"

namespace faultline::lab {
namespace {

// page: begin
// The wrong code: both factors in one block, as a file without padding holds them. B begins where
// A ends.
nn::LoraFactors packed(const Shape& a, const Shape& b, DType dtype) {
  const int64_t end_of_a = numel(a);
  const Tensor block = zeros({end_of_a + numel(b)}, dtype);
  return {block.alias(a, contiguous_strides(a)), block.alias(b, contiguous_strides(b), end_of_a)};
}
// page: end

int64_t past_16_bytes(const Tensor& x) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.view().data) % 16);
}

// What people do: a factor that lies badly is copied to memory of its own.
nn::LoraFactors cloned_where_off(const Shape& a, const Shape& b, DType dtype) {
  nn::LoraFactors factors = packed(a, b, dtype);
  if (past_16_bytes(factors.b) != 0) factors.b = clone(factors.b);
  return factors;
}

// What the article proposes: each matrix is padded to 16 bytes.
nn::LoraFactors padded(const Shape& a, const Shape& b, DType dtype) {
  const auto per_16_bytes = static_cast<int64_t>(16 / size_of(dtype));
  const int64_t end_of_a = (numel(a) + per_16_bytes - 1) / per_16_bytes * per_16_bytes;
  const Tensor block = zeros({end_of_a + numel(b)}, dtype);
  return {block.alias(a, contiguous_strides(a)), block.alias(b, contiguous_strides(b), end_of_a)};
}

Plant store(nn::LoraFactors (*place)(const Shape&, const Shape&, DType)) {
  return [place](Context& context) { return context.seams.replace<nn::LoraStorageSeam>(place); };
}

nn::LoraFactors placed(int64_t rank) {
  return Context::current().seams.call<nn::LoraStorageSeam>(Shape{rank, 5}, Shape{4, rank},
                                                            DType::f16);
}

// An adapter of rank 3 for a layer of 5 inputs and 4 outputs, in f16.
void run_small_adapter(const RunOptions&, Metrics& metrics) {
  const NoGrad off;
  const nn::LoraFactors factors = placed(3);
  fill_(factors.a, 0.5);
  fill_(factors.b, 2);
  Parameter a("layer.lora_A.weight", factors.a, Decay::yes);
  Parameter b("layer.lora_B.weight", factors.b, Decay::yes);
  const std::vector<Parameter*> both = {&a, &b};
  Context::current().events.emit(train::StepBeginEvent{1, both});
  const Tensor x = ones({1, 5}, DType::f16);
  const Tensor y = linear(linear(x, a.value()), b.value());

  metrics.measure("output", y.to_vector<double>()[0]);
  metrics.count("A begins past 16 bytes", static_cast<double>(past_16_bytes(a.value())));
  metrics.count("B begins past 16 bytes", static_cast<double>(past_16_bytes(b.value())));
  Curve starts{"bytes past 16 where B begins by rank", {}, {}};
  for (int64_t rank = 1; rank <= 16; ++rank) {
    starts.x.push_back(static_cast<double>(rank));
    starts.y.push_back(static_cast<double>(past_16_bytes(placed(rank).b)));
  }
  metrics.add(starts);
}

}  // namespace

FAULT(lora_misaligned) {
  Fault& fault = lab.fault(
      {.id = "lora.misaligned",
       .title = "An adapter's factor begins where a wide load may not",
       .domain = "adapters",
       .seed = "004 2.1",
       .mechanism =
           "A load must be aligned to its own size: 4 bytes for a float, 16 for float4 or 8 halves "
           "at once. An allocator gives 64 bytes or more; factors that are packed without padding, "
           "or mapped from a file, lie wherever the one before ends. A in f16 with rank 3 and 5 "
           "inputs takes 15 * 2 = 30 bytes, so B begins at byte 30, and 30 mod 16 = 14. CUDA ends "
           "with error 716, misaligned address, after which the process must be restarted; x86 "
           "faults in aligned vector loads only, and reads the rest correctly. So outputs here are "
           "the same.",
       .symptom = "\"CUDA error: misaligned address\", for some ranks and not for others, and with "
                  "some kernels only. On a CPU nothing, or a crash in an optimised build.",
       .article_says =
           "Loads of a warp need 16 bytes of alignment; thread 0 of a kernel checks the address of "
           "A; pad each matrix to 16 bytes, or let cudaMallocPitch align the rows.",
       .truth =
           "The alignment that is needed is that of the access, not 16 always: scalar loads would "
           "do. The check is on the wrong address: A is first in its allocation, which is aligned "
           "to 256 bytes, so it never fires; what is off is B behind it, and rows whose length is "
           "no multiple of 16 bytes (rank 3 in f16: 6). Padding each matrix helps the first, only "
           "padding the rank helps the second; added zero rows change no output.",
       .fix = "Give each factor memory of its own (clone a view that is off), pad the rank to a "
              "multiple of 16 bytes, or choose the width of loads from address and stride.",
       .sources =
           {"cutlass issue 49 (2019-05-16): misaligned address in a product in half precision with "
            "odd sizes. https://github.com/NVIDIA/cutlass/issues/49",
            "lorax pull request 256 (2024-02-17): ranks are padded for a kernel that needs 8, or "
            "multiples of 16. https://github.com/predibase/lorax/pull/256",
            "sgl-kernel-npu pull request 805 (2026-09-15): adapters of rank 8 in f16 miss an "
            "alignment of 32 bytes. https://github.com/sgl-project/sgl-kernel-npu/pull/805",
            "mobius pull request 248 (2026-05-04): tensors mapped from safetensors inherit the "
            "header's offset and fail in cuBLAS. https://github.com/onnxruntime/mobius/pull/248"},
       .look_alikes =
           "An index out of range, which is another error (700). A size that a kernel does not take, "
           "which it says before it runs. Refuted when every factor begins at a multiple of 16 "
           "bytes and each row's length is one.",
       .exercise = "In f32, for which ranks does every row of B [out, r] begin at a multiple of 16 "
                   "bytes?",
       .answer = "A row has 4 r bytes, so for r divisible by 4. In f16 for r divisible by 8."});

  fault.only_variant()
      .wrong(store(&packed))
      .run(&run_small_adapter)
      .remedy(store(&cloned_where_off))
      .claimed("pad each matrix to 16 bytes", store(&padded))
      .expect("B begins past 16 bytes", 14)
      .caught_by("parameter.alignment")
      // 3 * 34 * 4 bytes are 8 past a multiple of 16.
      .in_training({.steps = 200,
                    .needs = {{"hidden_size", "34"}, {"num_heads", "2"}, {"lora", "r=3,alpha=6"}}});
}

}  // namespace faultline::lab
