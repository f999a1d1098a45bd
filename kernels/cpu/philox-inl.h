// Counter-based random words in vectors, for one instruction set. Included as simd-inl.h is.
#if defined(FAULTLINE_KERNELS_CPU_PHILOX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FAULTLINE_KERNELS_CPU_PHILOX_INL
#undef FAULTLINE_KERNELS_CPU_PHILOX_INL
#else
#define FAULTLINE_KERNELS_CPU_PHILOX_INL
#endif

#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/spans.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

using Words = hn::Rebind<uint32_t, D>;

struct Products {
  hn::Vec<Words> low, high;
};

// The 64-bit product of each lane with a constant.
HWY_INLINE Products multiply(hn::Vec<Words> a, uint32_t constant) {
  const Words words;
  const hn::Repartition<uint64_t, Words> longs;
  const auto b = hn::Set(words, constant);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(words, hn::ShiftRight<32>(hn::BitCast(longs, a))), b);
  return {hn::OddEven(hn::BitCast(words, hn::ShiftLeft<32>(odd)), hn::BitCast(words, even)),
          hn::OddEven(hn::BitCast(words, odd), hn::BitCast(words, hn::ShiftRight<32>(even)))};
}

// The first word of faultline::philox for the counters (index, sequence, layer, step).
HWY_INLINE hn::Vec<Words> philox_word(hn::Vec<Words> index, const DropoutSpan& span) {
  const Words words;
  auto c0 = index;
  auto c1 = hn::Set(words, span.sequence);
  auto c2 = hn::Set(words, span.layer);
  auto c3 = hn::Set(words, span.step);
  uint32_t k0 = span.seed_low;
  uint32_t k1 = span.seed_high;
  for (int round = 0; round < 10; ++round) {
    const Products a = multiply(c0, 0xD2511F53U);
    const Products b = multiply(c2, 0xCD9E8D57U);
    c0 = hn::Xor(hn::Xor(b.high, c1), hn::Set(words, k0));
    c2 = hn::Xor(hn::Xor(a.high, c3), hn::Set(words, k1));
    c1 = b.low;
    c3 = a.low;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c0;
}

// Which of the elements with these indices in their sequence dropout keeps.
HWY_INLINE hn::Mask<D> is_kept(hn::Vec<Words> index, const DropoutSpan& span) {
  const auto word = philox_word(index, span);
  // No unsigned order below AVX-512: word >= threshold where the larger one is the word.
  const auto larger = hn::Max(word, hn::Set(Words(), span.threshold));
  return hn::RebindMask(D(), hn::Eq(larger, word));
}

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
