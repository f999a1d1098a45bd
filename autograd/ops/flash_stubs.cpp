// To be replaced.
#include "autograd/functional.h"
#include "autograd/rules.h"
#include "kernels/kernels.h"
namespace faultline {
FlashAttentionResult flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, const Tensor& documents, const Tensor& key, const FlashAttentionAttributes& a, Site site) {
  const Tensor inputs[] = {q, k, v, valid, documents, key};
  const Outputs out = apply(definition(Op::flash_attention), inputs, a, site);
  return {out[0], out[1]};
}
RULES(flash_attention) = {}; RULES(flash_attention_backward) = {};
#define STUB(name) void cpu::name(const KernelArgs&) { fail(#name ": not built yet"); } void reference::name(const KernelArgs&) { fail(#name ": not built yet"); }
STUB(flash_attention) STUB(flash_attention_backward)
}
