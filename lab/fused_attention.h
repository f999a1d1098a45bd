#pragma once

#include "autograd/op.h"
#include "core/context.h"
#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/layout.h"
#include "lab/case.h"
#include "nn/attention.h"

// For cases whose wrong code is a kernel of fused attention.
namespace faultline::lab {

// Both directions, so that a gradient belongs to what was computed.
struct FusedKernels {
  KernelRecord forward;
  KernelRecord backward{"flash_attention_backward", &cpu::flash_attention_backward};
};

// Runs them in f32 and 16 bits in place of the framework's own.
inline Plant fused_by(const FusedKernels& kernels) {
  return [&kernels](Context& context) {
    return context.seams.replace<KernelSeam>([&kernels](const SelectionRequest& request) {
      const bool own = request.dtype == DType::f64 || request.dtype == DType::c128;
      if (!own && &request.op == &definition(Op::flash_attention)) {
        return Selection{&kernels.forward, "hand-written"};
      }
      if (!own && &request.op == &definition(Op::flash_attention_backward)) {
        return Selection{&kernels.backward, "hand-written"};
      }
      return KernelSeam::standard(request);
    });
  };
}

// The remedy of many threads: another implementation, until the fused one is mended.
inline std::shared_ptr<void> use_math(Context& context) {
  return context.seams.replace<nn::AttentionPolicySeam>(
      [] { return nn::AttentionPolicy::require(nn::AttentionImplementation::math); });
}

// The launch with other attributes.
template <class Change>
KernelArgs changed(KernelArgs args, Change&& change) {
  auto attributes = args.attributes.as<FlashAttentionAttributes>();
  change(attributes);
  args.attributes = attributes;
  return args;
}

}  // namespace faultline::lab
