#include "autograd/autocast.h"

#include "autograd/functional.h"
#include "core/context.h"

namespace faultline {
namespace {

bool can_be_cast(const Tensor& tensor) {
  return tensor.defined() && (tensor.dtype() == DType::f32 || tensor.dtype() == DType::f16 ||
                              tensor.dtype() == DType::bf16);
}

DType widest(std::span<const Tensor> inputs) {
  DType result = DType::bf16;
  bool first = true;
  for (const Tensor& input : inputs) {
    if (!can_be_cast(input)) continue;
    // f16 with bf16 has no common 16-bit type.
    if (!first && input.dtype() != result) return DType::f32;
    result = input.dtype();
    first = false;
  }
  return result;
}

}  // namespace

std::span<const Tensor> autocast_inputs(const OpDefinition& op, std::span<const Tensor> given,
                                        Grads& storage) {
  Context& context = Context::current();
  if (op.autocast == Autocast::any) return given;
  DType target = *context.autocast;
  if (op.autocast == Autocast::full) target = DType::f32;
  if (op.autocast == Autocast::promote) target = widest(given);

  const Scoped<std::optional<DType>> off(context.autocast, std::nullopt);
  for (const Tensor& input : given) {
    storage.push_back(can_be_cast(input) && input.dtype() != target ? cast(input, target) : input);
  }
  return {storage.begin(), static_cast<size_t>(storage.size())};
}

}  // namespace faultline
