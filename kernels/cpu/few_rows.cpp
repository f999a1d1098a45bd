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
  V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t p = 0;
  for (; p + 4 * step <= k; p += 4 * step) {
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t at = p + part * step;
      sums[part] = hn::MulAdd(hn::LoadU(d, a + at), hn::LoadU(d, b + at), sums[part]);
    }
  }
  for (; p + step <= k; p += step) {
    sums[0] = hn::MulAdd(hn::LoadU(d, a + p), hn::LoadU(d, b + p), sums[0]);
  }
  if (p < k) sums[1] = hn::MulAdd(load_first(a + p, k - p), load_first(b + p, k - p), sums[1]);
  return hn::ReduceSum(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
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
