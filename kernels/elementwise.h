// The formula and the slope of every FAULTLINE_UNARY row of core/ops.def, once for every backend.
//
// A formula is written over a scalar T that has + - * / and these functions, found by overload:
//   exp_of log_of sqrt_of sin_of cos_of tanh_of erf_of     the functions of that name
//   select_positive(x, a, b)   x > 0 ? a : b, so b for a NaN
//   select_negative(x, a, b)   x < 0 ? a : b, so b for a NaN
// They are here for double and for std::complex<double>. A complex number serves derivatives by
// complex step, f'(x) = Im f(x + ih) / h (Squire and Trapp, SIAM Review 40, 1998): it is compared
// by its real part, and nothing takes its modulus, which has no derivative.
//
// Beyond the pragma-once part, the formulas are compiled again for every instruction set:
// kernels/cpu/simd-inl.h defines FAULTLINE_FORMULAS, the namespace that they go to, each time.
#ifndef FAULTLINE_KERNELS_ELEMENTWISE_SCALARS
#define FAULTLINE_KERNELS_ELEMENTWISE_SCALARS

#include <cmath>
#include <complex>
#include <numbers>

namespace faultline::functor {

inline double exp_of(double x) { return std::exp(x); }
inline double log_of(double x) { return std::log(x); }
inline double sqrt_of(double x) { return std::sqrt(x); }
inline double sin_of(double x) { return std::sin(x); }
inline double cos_of(double x) { return std::cos(x); }
inline double tanh_of(double x) { return std::tanh(x); }
inline double erf_of(double x) { return std::erf(x); }
inline double select_positive(double x, double a, double b) { return x > 0 ? a : b; }
inline double select_negative(double x, double a, double b) { return x < 0 ? a : b; }

using Complex = std::complex<double>;

inline Complex exp_of(Complex x) { return std::exp(x); }
inline Complex log_of(Complex x) { return std::log(x); }
inline Complex sqrt_of(Complex x) { return std::sqrt(x); }
inline Complex sin_of(Complex x) { return std::sin(x); }
inline Complex cos_of(Complex x) { return std::cos(x); }
inline Complex tanh_of(Complex x) { return std::tanh(x); }
// erf(x + ih) = erf(x) + ih 2/sqrt(pi) exp(-x^2) + O(h^2): exact in double for |h| < 1e-9.
inline Complex erf_of(Complex x) {
  const double slope = 2 * std::numbers::inv_sqrtpi * std::exp(-x.real() * x.real());
  return {std::erf(x.real()), x.imag() * slope};
}
inline Complex select_positive(Complex x, Complex a, Complex b) { return x.real() > 0 ? a : b; }
inline Complex select_negative(Complex x, Complex a, Complex b) { return x.real() < 0 ? a : b; }

}  // namespace faultline::functor
#endif

#if defined(FAULTLINE_FORMULAS) || !defined(FAULTLINE_KERNELS_ELEMENTWISE_FORMULAS)
#ifndef FAULTLINE_FORMULAS
#define FAULTLINE_KERNELS_ELEMENTWISE_FORMULAS
#define FAULTLINE_FORMULAS faultline::functor
#endif

namespace FAULTLINE_FORMULAS {

// x within +-1000, a NaN unchanged. Beyond it every exp(-|x|) below is 0 already, in double too,
// and infinity times 0 would make a NaN where the limit is plain.
template <class T>
T at_least_minus_1000(T x) {
  return select_negative(x + T(1000.0), T(-1000.0), x);
}
template <class T>
T within_1000(T x) {
  return at_least_minus_1000(select_positive(x - T(1000.0), T(1000.0), x));
}

// s = 1 / (1 + exp(-x)) and its derivative s (1 - s). With e = exp(-|x|), which is at most 1, s is
// 1 / (1 + e) above 0 and e / (1 + e) below, and the derivative e / (1 + e)^2 does not cancel.
template <class T>
struct Logistic {
  T value, slope;
};
template <class T>
Logistic<T> logistic(T x) {
  const T e = exp_of(select_positive(x, T(0.0) - x, x));
  const T upper = T(1.0) / (T(1.0) + e);
  return {select_positive(x, upper, e * upper), e * upper * upper};
}

// Each struct: value(x), and slope(x, y) = dy/dx where y = value(x).

// y = -x
struct neg {
  template <class T>
  static T value(T x) {
    return T(-1.0) * x;
  }
  template <class T>
  static T slope(T, T) {
    return T(-1.0);
  }
};

// y = |x|; slope -1, 0, 1 for x below, at and above 0
struct abs {
  template <class T>
  static T value(T x) {
    return select_positive(x, x, T(0.0) - x);
  }
  template <class T>
  static T slope(T x, T) {
    return select_positive(x, T(1.0), select_negative(x, T(-1.0), x - x));
  }
};

// y = x^2
struct square {
  template <class T>
  static T value(T x) {
    return x * x;
  }
  template <class T>
  static T slope(T x, T) {
    return x + x;
  }
};

// y = sqrt(x); slope 1 / (2 y)
struct sqrt {
  template <class T>
  static T value(T x) {
    return sqrt_of(x);
  }
  template <class T>
  static T slope(T, T y) {
    return T(0.5) / y;
  }
};

// y = 1 / sqrt(x); slope -y^3 / 2
struct rsqrt {
  template <class T>
  static T value(T x) {
    return T(1.0) / sqrt_of(x);
  }
  template <class T>
  static T slope(T, T y) {
    return T(-0.5) * y * y * y;
  }
};

// y = 1 / x; slope -y^2
struct reciprocal {
  template <class T>
  static T value(T x) {
    return T(1.0) / x;
  }
  template <class T>
  static T slope(T, T y) {
    return T(-1.0) * y * y;
  }
};

// y = e^x; slope y
struct exp {
  template <class T>
  static T value(T x) {
    return exp_of(x);
  }
  template <class T>
  static T slope(T, T y) {
    return y;
  }
};

// y = ln x
struct log {
  template <class T>
  static T value(T x) {
    return log_of(x);
  }
  template <class T>
  static T slope(T x, T) {
    return T(1.0) / x;
  }
};

// y = sin x
struct sin {
  template <class T>
  static T value(T x) {
    return sin_of(x);
  }
  template <class T>
  static T slope(T x, T) {
    return cos_of(x);
  }
};

// y = cos x
struct cos {
  template <class T>
  static T value(T x) {
    return cos_of(x);
  }
  template <class T>
  static T slope(T x, T) {
    return T(-1.0) * sin_of(x);
  }
};

// y = tanh x; slope 1 - y^2
struct tanh {
  template <class T>
  static T value(T x) {
    return tanh_of(x);
  }
  template <class T>
  static T slope(T, T y) {
    return T(1.0) - y * y;
  }
};

// y = 1 / (1 + e^-x); slope y (1 - y)
struct sigmoid {
  template <class T>
  static T value(T x) {
    return logistic(x).value;
  }
  template <class T>
  static T slope(T, T y) {
    return y * (T(1.0) - y);
  }
};

// y = max(x, 0); slope 1 above 0, else 0. A NaN stays one in both.
struct relu {
  template <class T>
  static T value(T x) {
    return select_negative(x, T(0.0), x);
  }
  template <class T>
  static T slope(T, T y) {
    return select_positive(y, T(1.0), y);
  }
};

// y = x s with s = sigmoid(x); slope s + x s (1 - s)
// (Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units", 2017)
struct silu {
  template <class T>
  static T value(T x) {
    return at_least_minus_1000(x) * logistic(x).value;
  }
  template <class T>
  static T slope(T x, T) {
    const Logistic<T> s = logistic(x);
    return s.value + within_1000(x) * s.slope;
  }
};

// y = x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), GPT-2's gelu
// (Hendrycks and Gimpel, "Gaussian error linear units", 2016).
// (1 + tanh u) / 2 is sigmoid(2u), which costs one exponential and does not cancel for u < 0.
// With s = sigmoid(2u): slope s + x s (1 - s) 2 u'.
struct gelu {
  static constexpr double kTwoRootTwoOverPi = 1.5957691216057307118;  // 2 sqrt(2/pi)
  static constexpr double kCubic = 0.044715;

  template <class T>
  static T twice_u(T x) {
    return T(kTwoRootTwoOverPi) * x * (T(1.0) + T(kCubic) * x * x);
  }
  template <class T>
  static T value(T x) {
    const T bounded = at_least_minus_1000(x);
    return bounded * logistic(twice_u(bounded)).value;
  }
  template <class T>
  static T slope(T x, T) {
    const T bounded = within_1000(x);
    const Logistic<T> s = logistic(twice_u(bounded));
    const T du = T(kTwoRootTwoOverPi) * (T(1.0) + T(3.0 * kCubic) * bounded * bounded);
    return s.value + bounded * s.slope * du;
  }
};

// y = x P with P = (1 + erf(x / sqrt 2)) / 2, the normal distribution; slope P + x p with its
// density p = exp(-x^2 / 2) / sqrt(2 pi)
struct gelu_erf {
  static constexpr double kInverseRootTwo = 0.70710678118654752440;
  static constexpr double kInverseRootTwoPi = 0.39894228040143267794;

  template <class T>
  static T distribution(T x) {
    return T(0.5) * (T(1.0) + erf_of(T(kInverseRootTwo) * x));
  }
  template <class T>
  static T value(T x) {
    const T bounded = at_least_minus_1000(x);
    return bounded * distribution(bounded);
  }
  template <class T>
  static T slope(T x, T) {
    const T bounded = within_1000(x);
    const T density = T(kInverseRootTwoPi) * exp_of(T(-0.5) * bounded * bounded);
    return distribution(bounded) + bounded * density;
  }
};

}  // namespace FAULTLINE_FORMULAS

#undef FAULTLINE_FORMULAS
#endif
