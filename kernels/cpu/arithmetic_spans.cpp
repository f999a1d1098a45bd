// Vector loops of arithmetic, conversions, optimizer updates and dropout.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/spans.h"
#include "kernels/cpu/targets.h"
#include "kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/arithmetic_spans.cpp"
#include "hwy/foreach_target.h"

#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

void add(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y, [](V u, V v) HWY_ATTR { return hn::Add(u, v); }, a, b);
}
void sub(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y, [](V u, V v) HWY_ATTR { return hn::Sub(u, v); }, a, b);
}
void mul(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y, [](V u, V v) HWY_ATTR { return hn::Mul(u, v); }, a, b);
}
void div(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y, [](V u, V v) HWY_ATTR { return hn::Div(u, v); }, a, b);
}
void maximum(const float* a, const float* b, float* y, int64_t n) {
  // A NaN compares false: in b it is chosen, in a it is asked for.
  map(
      n, y,
      [](V u, V v) HWY_ATTR { return hn::IfThenElse(hn::Or(hn::Gt(u, v), hn::IsNaN(u)), u, v); }, a,
      b);
}
void minimum(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y,
      [](V u, V v) HWY_ATTR { return hn::IfThenElse(hn::Or(hn::Lt(u, v), hn::IsNaN(u)), u, v); }, a,
      b);
}

void swiglu(const float* a, const float* b, float* y, int64_t n) {
  map(
      n, y, [](V u, V v) HWY_ATTR { return hn::Mul(functor::silu::value(Floats(u)).v, v); }, a, b);
}
void swiglu_backward(const float* dy, const float* a, const float* b, float* da, float* db,
                     int64_t n) {
  const D d;
  const auto step = [](V g, V u, V v, V& to_a, V& to_b) HWY_ATTR {
    const Floats gate(u);
    const Floats activated = functor::silu::value(gate);
    to_a = hn::Mul(hn::Mul(g, v), functor::silu::slope(gate, activated).v);
    to_b = hn::Mul(g, activated.v);
  };
  V to_a;
  V to_b;
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    step(hn::LoadU(d, dy + i), hn::LoadU(d, a + i), hn::LoadU(d, b + i), to_a, to_b);
    hn::StoreU(to_a, d, da + i);
    hn::StoreU(to_b, d, db + i);
  }
  if (i == n) return;
  step(load_first(dy + i, n - i), load_first(a + i, n - i), load_first(b + i, n - i), to_a, to_b);
  store_first(to_a, da + i, n - i);
  store_first(to_b, db + i, n - i);
}

void scale(const float* x, float* y, int64_t n, float factor) {
  const V a = all(factor);
  map(
      n, y, [a](V v) HWY_ATTR { return hn::Mul(a, v); }, x);
}
void affine(const float* x, float* y, int64_t n, float factor, float offset) {
  const V a = all(factor);
  const V b = all(offset);
  map(
      n, y, [a, b](V v) HWY_ATTR { return hn::MulAdd(a, v, b); }, x);
}

// ---- 16-bit types -------------------------------------------------------------------------------

using Shorts = hn::Rebind<uint16_t, D>;
using Halves = hn::Rebind<hwy::float16_t, D>;

HWY_INLINE V widen(hn::Vec<Shorts> bits, bfloat16) {
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits)));
}

HWY_INLINE hn::Vec<Shorts> narrow(V v, bfloat16) {
  const Words words;
  const auto bits = hn::BitCast(words, v);
  const auto upper_half = hn::ShiftRight<16>(bits);
  // Half of the last kept place, less one where that place is even, carries into it.
  const auto odd = hn::And(upper_half, hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
  const auto quiet_nan = hn::Or(upper_half, hn::Set(words, 0x40));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(v));
  const auto result = hn::IfThenElse(is_nan, quiet_nan, rounded);
  return hn::DemoteTo(Shorts(), hn::BitCast(Ints(), result));
}

#if HWY_TARGET == HWY_SSE4
// No instruction converts binary16 here, so it goes one by one.
HWY_INLINE V widen(hn::Vec<Shorts> bits, float16) {
  alignas(16) uint16_t from[4];
  alignas(16) float to[4];
  hn::Store(bits, Shorts(), from);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<float>(float16::from_bits(from[i]));
  return hn::Load(D(), to);
}
HWY_INLINE hn::Vec<Shorts> narrow(V v, float16) {
  alignas(16) float from[4];
  alignas(16) uint16_t to[4];
  hn::Store(v, D(), from);
  for (int i = 0; i < 4; ++i) to[i] = float16(from[i]).bits;
  return hn::Load(Shorts(), to);
}
#else
HWY_INLINE V widen(hn::Vec<Shorts> bits, float16) {
  return hn::PromoteTo(D(), hn::BitCast(Halves(), bits));
}
HWY_INLINE hn::Vec<Shorts> narrow(V v, float16) {
  return hn::BitCast(Shorts(), hn::DemoteTo(Halves(), v));
}
#endif

template <class T>
void widen_span(const T* x, float* y, int64_t n) {
  const auto* bits = reinterpret_cast<const uint16_t*>(x);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    hn::StoreU(widen(hn::LoadU(Shorts(), bits + i), T()), D(), y + i);
  }
  if (i < n) {
    alignas(64) uint16_t buffer[hn::MaxLanes(D())] = {};
    std::memcpy(buffer, bits + i, static_cast<size_t>(n - i) * 2);
    store_first(widen(hn::Load(Shorts(), buffer), T()), y + i, n - i);
  }
}

template <class T>
void narrow_span(const float* x, T* y, int64_t n) {
  auto* bits = reinterpret_cast<uint16_t*>(y);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    hn::StoreU(narrow(hn::LoadU(D(), x + i), T()), Shorts(), bits + i);
  }
  if (i < n) {
    alignas(64) uint16_t buffer[hn::MaxLanes(D())];
    hn::Store(narrow(load_first(x + i, n - i), T()), Shorts(), buffer);
    std::memcpy(bits + i, buffer, static_cast<size_t>(n - i) * 2);
  }
}

// ---- updates ------------------------------------------------------------------------------------

// Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, in the order of operations
// of torch.optim.AdamW.
void adamw(float* p, const float* g, float* m, float* v, int64_t n, const AdamwFactors& f) {
  const D d;
  const auto update = [&f](V& param, V grad, V& mean, V& square) HWY_ATTR {
    const V scaled = hn::Mul(grad, all(f.gradient));
    const V decayed = hn::Mul(param, all(f.decay));
    mean = hn::MulAdd(hn::Sub(scaled, mean), all(f.one_minus_beta1), mean);
    square =
        hn::MulAdd(hn::Mul(scaled, all(f.one_minus_beta2)), scaled, hn::Mul(square, all(f.beta2)));
    const V root = hn::Div(hn::Sqrt(square), all(f.root_correction2));
    const V step = hn::Div(hn::Mul(mean, all(f.step_size)), hn::Add(root, all(f.epsilon)));
    param = hn::Sub(decayed, step);
  };
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    V param = hn::LoadU(d, p + i);
    V mean = hn::LoadU(d, m + i);
    V square = hn::LoadU(d, v + i);
    update(param, hn::LoadU(d, g + i), mean, square);
    hn::StoreU(param, d, p + i);
    hn::StoreU(mean, d, m + i);
    hn::StoreU(square, d, v + i);
  }
  if (i == n) return;
  V param = load_first(p + i, n - i);
  V mean = load_first(m + i, n - i);
  V square = load_first(v + i, n - i);
  update(param, load_first(g + i, n - i), mean, square);
  store_first(param, p + i, n - i);
  store_first(mean, m + i, n - i);
  store_first(square, v + i, n - i);
}

// Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013, in
// the form of torch.optim.SGD: b = momentum b + g, p -= lr (nesterov ? g + momentum b : b).
void sgd(float* p, const float* g, float* momentum, int64_t n, const SgdFactors& f) {
  const V rate = all(f.momentum);
  const auto gradient = [&f](V param, V grad) HWY_ATTR {
    return hn::MulAdd(all(f.weight_decay), param, hn::Mul(grad, all(f.gradient)));
  };
  if (momentum == nullptr) {
    map(
        n, p,
        [&](V param, V grad)
            HWY_ATTR { return hn::NegMulAdd(all(f.lr), gradient(param, grad), param); },
        p, g);
    return;
  }
  map(
      n, momentum,
      [&](V buffer, V param, V grad)
          HWY_ATTR { return hn::MulAdd(rate, buffer, gradient(param, grad)); },
      momentum, p, g);
  map(
      n, p,
      [&](V param, V grad, V buffer) HWY_ATTR {
        const V ahead = hn::MulAdd(rate, buffer, gradient(param, grad));
        return hn::NegMulAdd(all(f.lr), f.nesterov ? ahead : buffer, param);
      },
      p, g, momentum);
}

// ---- dropout ------------------------------------------------------------------------------------

void dropout(const float* x, float* y, int64_t n, const DropoutSpan& span) {
  const Words words;
  const V factor = all(span.scale);
  auto index = hn::Iota(words, span.first);
  const auto stride = hn::Set(words, static_cast<uint32_t>(lanes()));
  map(
      n, y,
      [&](V v) HWY_ATTR {
        const V kept = hn::IfThenElseZero(is_kept(index, span), hn::Mul(v, factor));
        index = hn::Add(index, stride);
        return kept;
      },
      x);
}

const ArithmeticSpans& arithmetic() {
  static constexpr ArithmeticSpans kTable = {
      .add = add,
      .sub = sub,
      .mul = mul,
      .div = div,
      .maximum = maximum,
      .minimum = minimum,
      .swiglu = swiglu,
      .swiglu_backward = swiglu_backward,
      .scale = scale,
      .affine = affine,
      .widen_f16 = widen_span<float16>,
      .widen_bf16 = widen_span<bfloat16>,
      .narrow_f16 = narrow_span<float16>,
      .narrow_bf16 = narrow_span<bfloat16>,
      .adamw = adamw,
      .sgd = sgd,
      .dropout = dropout,
  };
  return kTable;
}

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::cpu {
const ArithmeticSpans& arithmetic_spans() { FAULTLINE_FOR_ACTIVE_ISA(arithmetic); }
}  // namespace faultline::cpu
#endif
