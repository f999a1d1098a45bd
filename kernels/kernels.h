#pragma once

#include "core/launch.h"
#include "core/op.h"

// One declaration per kernel that ops.def promises. `reference` holds plain loops over f64 (and
// c128) and also serves the dtypes that `cpu` does not take; `cpu` is vectorised f32, with f16 and
// bf16 converted on load and store.
namespace faultline {

#define FAULTLINE_FAST_fast(name) void name(const KernelArgs& args);
#define FAULTLINE_FAST_reference(name)
#define FAULTLINE_FAST_view(name)
#define FAULTLINE_REFERENCE_fast(name) void name(const KernelArgs& args);
#define FAULTLINE_REFERENCE_reference(name) void name(const KernelArgs& args);
#define FAULTLINE_REFERENCE_view(name)

namespace cpu {
#define FAULTLINE_UNARY(name, autocast) \
  void name(const KernelArgs& args);    \
  void name##_backward(const KernelArgs& args);
#define FAULTLINE_OP(name, in_, out_, diff_, sin_, sout_, autocast_, det_, kernels) \
  FAULTLINE_FAST_##kernels(name)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
}  // namespace cpu

namespace reference {
#define FAULTLINE_UNARY(name, autocast) \
  void name(const KernelArgs& args);    \
  void name##_backward(const KernelArgs& args);
#define FAULTLINE_OP(name, in_, out_, diff_, sin_, sout_, autocast_, det_, kernels) \
  FAULTLINE_REFERENCE_##kernels(name)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
}  // namespace reference

#undef FAULTLINE_FAST_fast
#undef FAULTLINE_FAST_reference
#undef FAULTLINE_FAST_view
#undef FAULTLINE_REFERENCE_fast
#undef FAULTLINE_REFERENCE_reference
#undef FAULTLINE_REFERENCE_view

// The launches that are not ops.
namespace kernels {
#define FAULTLINE_UNARY(name, autocast)
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)             \
  void run_##name(const KernelArgs& args); \
  inline constexpr KernelRecord name{#name, &run_##name};
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
}  // namespace kernels

}  // namespace faultline
