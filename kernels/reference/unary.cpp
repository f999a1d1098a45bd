// Every FAULTLINE_UNARY row: y = f(x), and its backward dx = dy * f'(x). Integers are computed in
// double.

#include "kernels/elementwise.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
template <class Function>
void value_of(const KernelArgs& args) {
  with_real_scalar(args,
                   [&]<class T>() { map<T, 1>(args, [](T x) { return Function::value(x); }); });
}

template <class Function>
void slope_of(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    map<T, 3>(args, [](T dy, T x, T y) { return dy * Function::slope(x, y); });
  });
}
}  // namespace

#define FAULTLINE_UNARY(name, autocast)                                \
  void name(const KernelArgs& args) { value_of<functor::name>(args); } \
  void name##_backward(const KernelArgs& args) { slope_of<functor::name>(args); }
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL

}  // namespace faultline::reference
