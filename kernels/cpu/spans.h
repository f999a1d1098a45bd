#pragma once

#include <cstdint>

#include "core/float16.h"

// The inner loops: functions over contiguous f32, compiled once per instruction set. Everything
// around them (layouts, other dtypes, threads, errors) is ordinary code that is compiled once.
//
// A span of n elements gives element i the same bits wherever it lies and whatever n is; n may be
// 0. Outputs may be one of the inputs. Sums are in f64, in an order that n alone decides.
namespace faultline::cpu {

// y = f(x), and dx = dy * slope(x, y).
struct UnarySpans {
#define FAULTLINE_UNARY(name, autocast)              \
  void (*name)(const float* x, float* y, int64_t n); \
  void (*name##_backward)(const float* dy, const float* x, const float* y, float* dx, int64_t n);
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
};

struct AdamwFactors {
  float decay;     // 1 - lr * weight_decay
  float gradient;  // multiplies the gradient
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction2;  // sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  // lr / (1 - beta1^t)
};

struct SgdFactors {
  float gradient;
  float weight_decay;
  float momentum;
  float lr;
  bool nesterov;
};

struct DropoutSpan {
  uint32_t first;  // index of the span's first element in its sequence
  uint32_t sequence;
  uint32_t layer;
  uint32_t step;
  uint32_t seed_low;
  uint32_t seed_high;
  uint32_t threshold;  // kept where the random word is at least this
  float scale;
};

struct ArithmeticSpans {
  using Binary = void (*)(const float* a, const float* b, float* y, int64_t n);
  Binary add, sub, mul, div;
  Binary maximum, minimum;  // a NaN in either gives a NaN
  Binary swiglu;            // silu(a) b
  // da = dy b silu'(a), db = dy silu(a)
  void (*swiglu_backward)(const float* dy, const float* a, const float* b, float* da, float* db,
                          int64_t n);
  void (*scale)(const float* x, float* y, int64_t n, float scale);
  void (*affine)(const float* x, float* y, int64_t n, float scale, float offset);

  void (*widen_f16)(const float16* x, float* y, int64_t n);
  void (*widen_bf16)(const bfloat16* x, float* y, int64_t n);
  // Round to nearest even, as the constructors in core/float16.h.
  void (*narrow_f16)(const float* x, float16* y, int64_t n);
  void (*narrow_bf16)(const float* x, bfloat16* y, int64_t n);

  void (*adamw)(float* p, const float* g, float* m, float* v, int64_t n, const AdamwFactors& f);
  // `momentum` may be null.
  void (*sgd)(float* p, const float* g, float* momentum, int64_t n, const SgdFactors& f);
  void (*dropout)(const float* x, float* y, int64_t n, const DropoutSpan& span);
};

struct RowSpans {
  double (*sum)(const float* x, int64_t n);
  double (*dot)(const float* a, const float* b, int64_t n);
  double (*sum_of_squares)(const float* x, int64_t n, double center);  // of x - center
  // total[i] += x[i] of each row in turn, rows `stride` apart; `total` has room for n rounded up to
  // kTotalsMultiple.
  void (*add_rows_to_totals)(const float* x, int64_t stride, int64_t rows, double* total,
                             int64_t n);

  // Largest element that is not a NaN, -infinity when there is none.
  float (*max)(const float* x, int64_t n);
  // y = scale * x; returns max(y).
  float (*scale_and_max)(const float* x, float* y, int64_t n, float scale);
  // y = allowed[i] != 0 ? scale * x : other.
  void (*select)(const float* allowed, const float* x, float* y, int64_t n, float scale,
                 float other);
  // y = exp(x - shift); returns sum(y).
  double (*exp_and_sum)(const float* x, float* y, int64_t n, float shift);
  double (*sum_of_exp)(const float* x, int64_t n, float shift);
  // y = (x - a) - b
  void (*subtract_both)(const float* x, float* y, int64_t n, float a, float b);
  // dx = y (dy - dot)
  void (*softmax_backward)(const float* dy, const float* y, float* dx, int64_t n, float dot);
  // dx = dy - exp(y) total
  void (*log_softmax_backward)(const float* dy, const float* y, float* dx, int64_t n, float total);
  // dx = exp(x - shift) factor
  void (*scaled_exp)(const float* x, float* dx, int64_t n, float shift, float factor);

  // y = (x - mean) rstd weight + bias; `weight` and `bias` may be null.
  void (*normalize)(const float* x, const float* weight, const float* bias, float* y, int64_t n,
                    float mean, float rstd);
  // With z = (x - mean) rstd and g = dy weight: sums[0] = sum(g), sums[1] = sum(g z).
  void (*normalize_sums)(const float* dy, const float* x, const float* weight, int64_t n,
                         float mean, float rstd, double sums[2]);
  // dx = rstd (g - a - z b)
  void (*normalize_backward)(const float* dy, const float* x, const float* weight, float* dx,
                             int64_t n, float mean, float rstd, float a, float b);
  // dweight[i] += dy[i] z[i], dbias[i] += dy[i]; both with room as in add_rows_to_totals.
  void (*normalize_totals)(const float* dy, const float* x, double* dweight, double* dbias,
                           int64_t n, float mean, float rstd);

  // Turns each of n pairs (a, b) of the 2 n elements of x: (a cos - b sin, b cos + a sin), with
  // `sign` times the sines. A pair is elements i and i + n, or 2 i and 2 i + 1.
  void (*turn_halves)(const float* x, const float* cosines, const float* sines, float* y, int64_t n,
                      float sign);
  void (*turn_neighbours)(const float* x, const float* cosines, const float* sines, float* y,
                          int64_t n, float sign);
};

constexpr int64_t kTotalsMultiple = 16;  // lanes of the widest vector

// The tables of the active level. They throw as active_isa() does.
const UnarySpans& unary_spans();
const ArithmeticSpans& arithmetic_spans();
const RowSpans& row_spans();

}  // namespace faultline::cpu
