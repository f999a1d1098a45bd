// Vectors of f32 for one instruction set: arithmetic, functions, loops with tails. Included again
// for every level by the files that include hwy/foreach_target.h.
#if defined(FAULTLINE_KERNELS_CPU_SIMD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FAULTLINE_KERNELS_CPU_SIMD_INL
#undef FAULTLINE_KERNELS_CPU_SIMD_INL
#else
#define FAULTLINE_KERNELS_CPU_SIMD_INL
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Ints = hn::Rebind<int32_t, D>;
using Doubles = hn::Repartition<double, D>;
using V = hn::Vec<D>;

HWY_INLINE V all(float x) { return hn::Set(D(), x); }

// The scalar that the formulas of kernels/elementwise.h are compiled for.
struct Floats {
  V v;
  HWY_INLINE explicit Floats(double x) : v(all(static_cast<float>(x))) {}
  HWY_INLINE explicit Floats(V x) : v(x) {}
};
HWY_INLINE Floats operator+(Floats a, Floats b) { return Floats(hn::Add(a.v, b.v)); }
HWY_INLINE Floats operator-(Floats a, Floats b) { return Floats(hn::Sub(a.v, b.v)); }
HWY_INLINE Floats operator*(Floats a, Floats b) { return Floats(hn::Mul(a.v, b.v)); }
HWY_INLINE Floats operator/(Floats a, Floats b) { return Floats(hn::Div(a.v, b.v)); }
HWY_INLINE Floats select_positive(Floats x, Floats a, Floats b) {
  return Floats(hn::IfThenElse(hn::Gt(x.v, hn::Zero(D())), a.v, b.v));
}
HWY_INLINE Floats select_negative(Floats x, Floats a, Floats b) {
  return Floats(hn::IfThenElse(hn::Lt(x.v, hn::Zero(D())), a.v, b.v));
}

// c0 + c1 x + c2 x^2 + ...
HWY_INLINE V polynomial(V, float c) { return all(c); }
template <class... Rest>
HWY_INLINE V polynomial(V x, float c, Rest... rest) {
  return hn::MulAdd(polynomial(x, rest...), x, all(c));
}

// e^x to 1.1 ulp where the result is normal, subnormal results and infinity included, a NaN for a
// NaN. With n = round(x / ln 2) and r = x - n ln 2, e^x = 2^n e^r; the polynomial for
// (e^r - 1 - r) / r^2 is the Chebyshev fit on |r| <= ln(2) / 2. Highway's Exp wraps around above
// 176 and makes 0 of a NaN.
HWY_INLINE V exp(V x) {
  const D d;
  const Ints di;
  // Below -105 the result is 0 and above 89 infinity. Operand order matters: x86 returns the second
  // one when either is a NaN.
  x = hn::Min(all(89.0F), hn::Max(all(-105.0F), x));
  // Adding 1.5 * 2^23 leaves the rounded sum in the low bits of the significand.
  const V magic = all(0x1.8p23F);
  const V shifted = hn::MulAdd(x, all(1.44269504F), magic);
  const V n = hn::Sub(shifted, magic);
  // ln 2 in two parts; the first has few bits, so its product with n is exact.
  V r = hn::MulAdd(n, all(-0x1.62e4p-1F), x);
  r = hn::MulAdd(n, all(-1.42860677e-6F), r);
  const V p = polynomial(r, 0.5F, 0.166666667F, 0.0416664568F, 0.00833331002F, 0.00139345419F,
                         0.000198919813F);
  const V y = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), all(1.0F));
  // 2^n in two steps, so that each factor is a normal number.
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return hn::Mul(hn::Mul(y, first), second);
}

// Highway's logarithm with the edges of std::log.
HWY_INLINE V log(V x) {
  const D d;
  const V infinity = all(std::numeric_limits<float>::infinity());
  const V inside = hn::IfThenElse(hn::Lt(x, infinity), hn::Log(d, x), x);
  const V outside = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity),
                                   all(std::numeric_limits<float>::quiet_NaN()));
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), inside, outside);
}

// erf: x P(x^2) up to 1, beyond it 1 - exp(-x Q(x)); P and Q are Chebyshev fits of erf(x) / x and
// -ln(1 - erf(x)) / x on [0, 1] and [1, 4]. From 4 on the result rounds to 1. Error below 2e-7.
HWY_INLINE V erf(V x) {
  const V magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  const V near =
      hn::Mul(x, polynomial(square, 1.12837917F, -0.376126267F, 0.112835947F, -0.0268542120F,
                            0.00518908742F, -0.000801686429F, 7.87587506e-5F));
  const V t = hn::Min(all(4.0F), magnitude);
  const V q = polynomial(t, 1.12895724F, 0.633971448F, 0.108091913F, -0.0253086012F, 0.00437392262F,
                         -0.000515745764F, 3.65930118e-5F, -1.16603250e-6F);
  const V far = hn::CopySign(hn::Sub(all(1.0F), exp(hn::Neg(hn::Mul(t, q)))), x);
  return hn::IfThenElse(hn::Gt(magnitude, all(1.0F)), far, near);
}

// Highway's sine and cosine reduce their argument well up to 39,000; a lane beyond that, or not
// finite, is computed in double by itself.
HWY_INLINE V repair_large(V x, V y, double (*function)(double)) {
  const D d;
  if (HWY_LIKELY(hn::AllTrue(d, hn::Le(hn::Abs(x), all(30000.0F))))) return y;
  alignas(64) float from[hn::MaxLanes(D())];
  alignas(64) float to[hn::MaxLanes(D())];
  hn::Store(x, d, from);
  hn::Store(y, d, to);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    const bool reduced_well = std::fabs(from[i]) <= 30000.0F;
    if (!reduced_well) to[i] = static_cast<float>(function(from[i]));
  }
  return hn::Load(d, to);
}

HWY_INLINE Floats exp_of(Floats x) { return Floats(exp(x.v)); }
HWY_INLINE Floats log_of(Floats x) { return Floats(log(x.v)); }
HWY_INLINE Floats sqrt_of(Floats x) { return Floats(hn::Sqrt(x.v)); }
HWY_INLINE Floats tanh_of(Floats x) { return Floats(hn::Tanh(D(), x.v)); }
HWY_INLINE Floats erf_of(Floats x) { return Floats(erf(x.v)); }
HWY_INLINE Floats sin_of(Floats x) {
  return Floats(repair_large(x.v, hn::Sin(D(), x.v), [](double a) { return std::sin(a); }));
}
HWY_INLINE Floats cos_of(Floats x) {
  return Floats(repair_large(x.v, hn::Cos(D(), x.v), [](double a) { return std::cos(a); }));
}

// ---- loops --------------------------------------------------------------------------------------

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(D())); }

// The first n (fewer than a vector) elements at x, then `rest`. Nothing beyond x + n is read. Where
// the instruction set has masked access, a detour over the stack would only cost time.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_INLINE hn::Mask<D> first(int64_t n) { return hn::FirstN(D(), static_cast<size_t>(n)); }

HWY_INLINE V load_first(const float* x, int64_t n) { return hn::MaskedLoad(first(n), D(), x); }
HWY_INLINE V load_first(const float* x, int64_t n, float rest) {
  return hn::IfThenElse(first(n), load_first(x, n), all(rest));
}

HWY_INLINE void store_first(V v, float* y, int64_t n) { hn::BlendedStore(v, first(n), D(), y); }
#else
HWY_INLINE V load_first(const float* x, int64_t n, float rest = 0.0F) {
  alignas(64) float buffer[hn::MaxLanes(D())];
  hn::Store(all(rest), D(), buffer);
  std::memcpy(buffer, x, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(D(), buffer);
}

HWY_INLINE void store_first(V v, float* y, int64_t n) {
  alignas(64) float buffer[hn::MaxLanes(D())];
  hn::Store(v, D(), buffer);
  std::memcpy(y, buffer, static_cast<size_t>(n) * sizeof(float));
}
#endif

// y[i] = body(inputs[i]...). The tail goes through the same vector code, padded with zeros.
template <class Body, class... Inputs>
HWY_INLINE void map(int64_t n, float* y, const Body& body, const Inputs*... inputs) {
  const D d;
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    hn::StoreU(body(hn::LoadU(d, inputs + i)...), d, y + i);
  }
  if (i < n) store_first(body(load_first(inputs + i, n - i)...), y + i, n - i);
}

// Calls body(vector...) for all elements in order; the last vector is filled up with `rest`.
template <class Body, class... Inputs>
HWY_INLINE void each(int64_t n, float rest, const Body& body, const Inputs*... inputs) {
  const D d;
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) body(hn::LoadU(d, inputs + i)...);
  if (i < n) body(load_first(inputs + i, n - i, rest)...);
}

using DoubleV = hn::Vec<Doubles>;
HWY_INLINE DoubleV lower(V v) { return hn::PromoteTo(Doubles(), hn::LowerHalf(hn::Half<D>(), v)); }
HWY_INLINE DoubleV upper(V v) { return hn::PromoteTo(Doubles(), hn::UpperHalf(hn::Half<D>(), v)); }

// A sum in f64, one part for each lane.
struct Total {
  DoubleV low, high;

  HWY_INLINE Total() : low(hn::Zero(Doubles())), high(hn::Zero(Doubles())) {}

  HWY_INLINE void add(V x) {
    low = hn::Add(low, lower(x));
    high = hn::Add(high, upper(x));
  }
  HWY_INLINE void add_product(V a, V b) {
    low = hn::MulAdd(lower(a), lower(b), low);
    high = hn::MulAdd(upper(a), upper(b), high);
  }
  HWY_INLINE double value() const {
    return hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(low, high)));
  }
};

}  // namespace faultline::cpu::HWY_NAMESPACE

// The formulas, for this level.
#define FAULTLINE_FORMULAS faultline::cpu::HWY_NAMESPACE::functor
#include "kernels/elementwise.h"

HWY_AFTER_NAMESPACE();
#endif
