// Products of a few rows with a matrix that is dense along k: each row of it is read once, in
// order, at the pace of the memory.
#include "kernels/cpu/few_rows.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/few_rows.cpp"
#include "hwy/foreach_target.h"

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace faultline::cpu::HWY_NAMESPACE {

// Four sums a lane, so that no multiplication waits for the one before.
HWY_INLINE float dot(const float* a, const float* b, int64_t k) {
  const D d;
  const int64_t step = lanes();
  V s0 = hn::Zero(d);
  V s1 = hn::Zero(d);
  V s2 = hn::Zero(d);
  V s3 = hn::Zero(d);
  int64_t p = 0;
  const auto product = [&](int64_t at, V sum) HWY_ATTR {
    return hn::MulAdd(hn::LoadU(d, a + at), hn::LoadU(d, b + at), sum);
  };
  for (; p + 4 * step <= k; p += 4 * step) {
    s0 = product(p, s0);
    s1 = product(p + step, s1);
    s2 = product(p + 2 * step, s2);
    s3 = product(p + 3 * step, s3);
  }
  for (; p + step <= k; p += step) s0 = product(p, s0);
  if (p < k) s1 = hn::MulAdd(load_first(a + p, k - p), load_first(b + p, k - p), s1);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// The rows of x find each row of w in the first-level cache, after the first of them fetched it.
void few_rows(const FewRows& p) {
  for (int64_t j = 0; j < p.n; ++j) {
    const float* w = p.w + j * p.w_leading;
    for (int64_t i = 0; i < p.m; ++i) {
      const float sum = dot(p.x + i * p.x_leading, w, p.k);
      p.y[i * p.y_leading + j] = p.bias == nullptr ? sum : sum + p.bias[j];
    }
  }
}

FewRowsFunction function() { return &few_rows; }

}  // namespace faultline::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace faultline::cpu {
FewRowsFunction few_rows_product() { FAULTLINE_FOR_ACTIVE_ISA(function); }
}  // namespace faultline::cpu
#endif
