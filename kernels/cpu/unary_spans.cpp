// The elementwise formulas of kernels/elementwise.h as vector loops.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/spans.h"
#include "kernels/cpu/targets.h"
// The plain scalar part of the formulas belongs to no instruction set.
#include "kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unary_spans.cpp"
#include "hwy/foreach_target.h"

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

template <class Function>
void value_span(const float* x, float* y, int64_t n) {
  map(
      n, y, [](V v) HWY_ATTR { return Function::value(Floats(v)).v; }, x);
}

template <class Function>
void backward_span(const float* dy, const float* x, const float* y, float* dx, int64_t n) {
  map(
      n, dx,
      [](V g, V v, V w) HWY_ATTR { return hn::Mul(g, Function::slope(Floats(v), Floats(w)).v); },
      dy, x, y);
}

const UnarySpans& unary() {
  static constexpr UnarySpans kTable = {
#define FAULTLINE_UNARY(name, autocast) value_span<functor::name>, backward_span<functor::name>,
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
  };
  return kTable;
}

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::cpu {
const UnarySpans& unary_spans() { FAULTLINE_FOR_ACTIVE_ISA(unary); }
}  // namespace faultline::cpu
#endif
