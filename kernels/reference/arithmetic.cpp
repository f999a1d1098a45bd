// Elementwise functions of two or three tensors, and comparisons.

#include <cmath>
#include <type_traits>

#include "kernels/attributes.h"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
// Integers wrap around, as they do in the memory that holds them; signed overflow would be
// undefined.
template <class T, class Function>
T wrapping(T x, T y, Function function) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(function(static_cast<uint64_t>(x), static_cast<uint64_t>(y)));
  } else {
    return function(x, y);
  }
}

template <class Function>
void arithmetic(const KernelArgs& args, Function function) {
  with_scalar(args, [&]<class T>() {
    map<T, 2>(args, [&](T x, T y) { return wrapping(x, y, function); });
  });
}

// Comparisons see real parts.
template <class Function>
void compare(const KernelArgs& args, Function function) {
  with_scalar(args, [&]<class T>() {
    map<T, 2>(args, [&](T x, T y) { return function(real_of(x), real_of(y)); });
  });
}

// One of the two, chosen by real parts; a NaN in either wins.
template <class Better>
void choose(const KernelArgs& args, Better better) {
  with_scalar(args, [&]<class T>() {
    map<T, 2>(args, [&](T x, T y) {
      if (x != x) return x;
      if (y != y) return y;
      return better(real_of(y), real_of(x)) ? y : x;
    });
  });
}

template <class T>
bool is_finite(T x) {
  if constexpr (std::is_same_v<T, Complex>) {
    return std::isfinite(x.real()) && std::isfinite(x.imag());
  } else if constexpr (std::is_same_v<T, double>) {
    return std::isfinite(x);
  } else {
    return true;
  }
}
}  // namespace

void affine(const KernelArgs& args) {
  const auto a = args.attributes.as<AffineAttributes>();
  const bool whole = std::trunc(a.scale) == a.scale && std::trunc(a.offset) == a.offset;
  with_scalar(args, [&]<class T>() {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (whole) {
        const auto scale = convert<int64_t>(a.scale);
        const auto offset = convert<int64_t>(a.offset);
        map<T, 1>(args, [&](T x) {
          const T scaled = wrapping(x, scale, [](auto p, auto q) { return p * q; });
          return wrapping(scaled, offset, [](auto p, auto q) { return p + q; });
        });
      } else {
        map<double, 1>(args, [&](double x) { return a.scale * x + a.offset; });
      }
    } else {
      map<T, 1>(args, [&](T x) { return a.scale * x + a.offset; });
    }
  });
}

void add(const KernelArgs& args) {
  arithmetic(args, [](auto x, auto y) { return x + y; });
}
void sub(const KernelArgs& args) {
  arithmetic(args, [](auto x, auto y) { return x - y; });
}
void mul(const KernelArgs& args) {
  arithmetic(args, [](auto x, auto y) { return x * y; });
}
// Of integers too the quotient is computed in double.
void div(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() { map<T, 2>(args, [](T x, T y) { return x / y; }); });
}

void maximum(const KernelArgs& args) {
  choose(args, [](auto x, auto y) { return x > y; });
}
void minimum(const KernelArgs& args) {
  choose(args, [](auto x, auto y) { return x < y; });
}

void equal(const KernelArgs& args) {
  compare(args, [](auto x, auto y) { return x == y; });
}
void less(const KernelArgs& args) {
  compare(args, [](auto x, auto y) { return x < y; });
}
void less_equal(const KernelArgs& args) {
  compare(args, [](auto x, auto y) { return x <= y; });
}

void logical_and(const KernelArgs& args) {
  with_scalar(args,
              [&]<class T>() { map<T, 2>(args, [](T x, T y) { return x != T(0) && y != T(0); }); });
}
void logical_not(const KernelArgs& args) {
  with_scalar(args, [&]<class T>() { map<T, 1>(args, [](T x) { return x == T(0); }); });
}
void isfinite(const KernelArgs& args) {
  with_scalar(args, [&]<class T>() { map<T, 1>(args, [](T x) { return is_finite(x); }); });
}

// silu(gate) * up
void swiglu(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    map<T, 2>(args, [](T gate, T up) { return functor::silu::value(gate) * up; });
  });
}

// Inputs dy, gate, up; outputs dy * up * silu'(gate), dy * silu(gate).
void swiglu_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    map<T, 3>(args, [](T dy, T gate, T up) {
      return dy * up * functor::silu::slope(gate, functor::silu::value(gate));
    });
    KernelArgs of_up = args;
    of_up.outputs[0] = args.outputs[1];
    map<T, 2>(of_up, [](T dy, T gate) { return dy * functor::silu::value(gate); });
  });
}

// The branch not taken is not touched: a NaN in it stays there.
void where(const KernelArgs& args) {
  with_scalar(args, [&]<class T>() {
    map<T, 3>(args, [](T condition, T a, T b) { return condition != T(0) ? a : b; });
  });
}

}  // namespace faultline::reference
