#pragma once

#include <array>
#include <optional>
#include <vector>

#include "autograd/op.h"
#include "autograd/tape.h"
#include "kernels/attributes.h"

// The tensor library: every function here is one `apply` (or a few). Shapes broadcast by NumPy's
// rule where two tensors meet; dtypes must agree except where said. Errors are InvalidArgument and
// name the op.
namespace faultline {

// ---- making tensors -----------------------------------------------------------------------------
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Site site = Site::here());
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Site site = Site::here());
Tensor ones(const Shape& shape, DType dtype = DType::f32, Site site = Site::here());
// start, start + step, ...; `count` elements.
Tensor arange(int64_t count, double start = 0, double step = 1, DType dtype = DType::i64,
              Site site = Site::here());
// mean + deviation * normal(i), from RandomSequence(seed, stream).
Tensor normal(const Shape& shape, double mean, double deviation, uint64_t seed, uint64_t stream,
              DType dtype = DType::f32, Site site = Site::here());
// low + (high - low) * uniform(i).
Tensor uniform(const Shape& shape, double low, double high, uint64_t seed, uint64_t stream,
               DType dtype = DType::f32, Site site = Site::here());
// A contiguous copy without gradient history.
Tensor clone(const Tensor& x, Site site = Site::here());

// ---- writing in place (outside the tape; they raise the version) --------------------------------
// They throw when x requires a gradient and gradients are on, and when indices of x share elements
// (an expanded tensor). The source may overlap x: it is read as it was before.
void fill_(const Tensor& x, double value);
void copy_(const Tensor& x, const Tensor& from);     // same shape, any dtypes
void accumulate_(const Tensor& x, const Tensor& y);  // x += y; same shape and dtype, x contiguous

// ---- elementwise, one tensor --------------------------------------------------------------------
// The FAULTLINE_UNARY rows of core/ops.def. Integers are computed in double and truncated: cast
// them to a float first.
#define FAULTLINE_UNARY(name, autocast) Tensor name(const Tensor& x, Site site = Site::here());
#define FAULTLINE_OP(...)
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
// scale * x + offset.
Tensor affine(const Tensor& x, double scale, double offset, Site site = Site::here());
// Whether no element is infinite or NaN. Synchronises.
bool all_finite(const Tensor& x);

// ---- elementwise, two tensors -------------------------------------------------------------------
Tensor add(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor sub(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor mul(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor div(const Tensor& a, const Tensor& b, Site site = Site::here());
// The larger; where equal, the gradient is shared in halves.
Tensor maximum(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor minimum(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor equal(const Tensor& a, const Tensor& b, Site site = Site::here());       // bool
Tensor less(const Tensor& a, const Tensor& b, Site site = Site::here());        // bool
Tensor less_equal(const Tensor& a, const Tensor& b, Site site = Site::here());  // bool
Tensor logical_and(const Tensor& a, const Tensor& b, Site site = Site::here());
Tensor logical_not(const Tensor& a, Site site = Site::here());
Tensor isfinite(const Tensor& x, Site site = Site::here());  // bool
// condition (bool) ? a : b, all three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b, Site site = Site::here());

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return affine(a, 1, b); }
inline Tensor operator-(const Tensor& a, double b) { return affine(a, 1, -b); }
inline Tensor operator*(const Tensor& a, double b) { return affine(a, b, 0); }
inline Tensor operator*(double a, const Tensor& b) { return affine(b, a, 0); }
inline Tensor operator-(const Tensor& a) { return neg(a); }

// ---- layout -------------------------------------------------------------------------------------
// No element moves except in contiguous, cast, cat and index_select.

// The elements in row-major order as another shape; one size may be -1 and is found. Copies only
// when the layout does not allow a view.
Tensor reshape(const Tensor& x, const Shape& shape, Site site = Site::here());
// The same, never a copy: throws when the layout does not allow it.
Tensor view(const Tensor& x, const Shape& shape, Site site = Site::here());
// Dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const Dims& order, Site site = Site::here());
// Two dimensions exchanged; negative counts from the end.
Tensor transpose(const Tensor& x, int64_t dim_a, int64_t dim_b, Site site = Site::here());
// Elements [begin, end) of a dimension; negative counts from the end.
Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, Site site = Site::here());
// Repeats sizes of 1 and adds leading dimensions to reach `shape`, as a view.
Tensor expand(const Tensor& x, const Shape& shape, Site site = Site::here());
// Equal parts of `size` along dim (the last may be smaller).
std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim, Site site = Site::here());
// The three equal parts of the last dimension, as views: a fused q | k | v.
std::array<Tensor, 3> split3(const Tensor& x, Site site = Site::here());
// x itself when it is contiguous and of that dtype, else a copy; cast() rounds as convert() does.
Tensor contiguous(const Tensor& x, Site site = Site::here());
Tensor cast(const Tensor& x, DType dtype, Site site = Site::here());
// Behind each other along dim; all other sizes and the dtypes are equal.
Tensor cat(std::span<const Tensor> tensors, int64_t dim, Site site = Site::here());
// Rows of `dim` by number; ids i32 or i64, one-dimensional.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& ids, Site site = Site::here());

// ---- reductions ---------------------------------------------------------------------------------
enum class KeepDim : uint8_t { no, yes };
// Over the given dimensions, or all. The sum of integers or bools is i64; floats keep their dtype
// and are summed in f64. The mean is of floats.
Tensor sum(const Tensor& x, const std::vector<int64_t>& dims = {}, KeepDim keep = KeepDim::no,
           Site site = Site::here());
Tensor mean(const Tensor& x, const std::vector<int64_t>& dims = {}, KeepDim keep = KeepDim::no,
            Site site = Site::here());
// The largest; where several are, the gradient is shared equally.
Tensor amax(const Tensor& x, const std::vector<int64_t>& dims = {}, KeepDim keep = KeepDim::no,
            Site site = Site::here());
// i64 number of the first largest element along dim.
Tensor argmax(const Tensor& x, int64_t dim, Site site = Site::here());
// Sums x over what broadcasting added to reach its shape from `shape`.
Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- products, f32 accumulation for 16-bit inputs -----------------------------------------------
// [.., M, K] x [.., K, N], leading dimensions broadcast.
Tensor matmul(const Tensor& a, const Tensor& b, Site site = Site::here());
// x [.., in] times the transpose of weight [out, in], plus bias [out] unless undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Site site = Site::here());

// ---- networks -----------------------------------------------------------------------------------
// Over the last dimension.
Tensor softmax(const Tensor& x, Site site = Site::here());
Tensor log_softmax(const Tensor& x, Site site = Site::here());
// softmax(scale * scores) [B, H, Q, K] over the keys that the mask allows; see MaskAttributes.
// A row with no visible key gives zeros. key_valid bool [B, K] and documents i32 [B, K] may be
// undefined.
Tensor masked_softmax(const Tensor& scores, const Tensor& key_valid, const Tensor& documents,
                      const MaskAttributes& mask, Site site = Site::here());
// Loss of each row of logits [N, V] against labels [N] (i32 or i64): -log softmax(row)[label];
// 0 where the label is `ignore_index`. f32 for 16-bit logits. Throws on a label outside [0, V).
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& labels, int64_t ignore_index = -1,
                          Site site = Site::here());
// Over the last dimension of size C; weight and bias [C] may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon = 1e-5,
                  Site site = Site::here());
// x / sqrt(mean(x^2) + epsilon) * weight over the last dimension of size C; weight [C] may be
// undefined ("Root mean square layer normalization", Zhang and Sennrich 2019).
Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon = 1e-6,
                Site site = Site::here());
// x [B, H, T, D] with each pair of elements turned by its angle; cosines and sines [1 or B, T, D /
// 2] in f32 (f64 for an x in f64) ("RoFormer", Su et al. 2021). See RopeLayout.
Tensor rope(const Tensor& x_BHTD, const Tensor& cosines, const Tensor& sines, RopeLayout layout,
            Site site = Site::here());
// silu(gate) * up ("GLU variants improve Transformer", Shazeer 2020); both of one shape.
Tensor swiglu(const Tensor& gate, const Tensor& up, Site site = Site::here());
// Attention by tiles with an online softmax (FlashAttention-2, Dao 2023): q [B, H, Q, D], k and v
// [B, G, K, D] give y [B, H, Q, D]; query head h reads key head h / (H / G). Memory grows with Q
// and K, never with Q x K. A row with no visible key gives zeros. key_valid, documents and, without
// dropout, dropout_key (i64 [3], see dropout()) may be undefined. Equal to the same written with
// matmul, masked_softmax and dropout up to rounding; dropout keeps the same elements.
struct FlashAttentionResult {
  Tensor y_BHQD;
  Tensor log_sum_exp_BHQ;  // f32 up, of the scaled scores; -infinity where no key is visible
};
FlashAttentionResult flash_attention(const Tensor& q_BHQD, const Tensor& k_BGKD,
                                     const Tensor& v_BGKD, const Tensor& key_valid,
                                     const Tensor& documents, const Tensor& dropout_key,
                                     const FlashAttentionAttributes& attributes,
                                     Site site = Site::here());
// Rows of weight [V, C] for ids of any shape; throws on an id outside [0, V).
Tensor embedding(const Tensor& weight, const Tensor& ids, Site site = Site::here());
// Zeroes elements with probability p and scales the rest by 1 / (1 - p). `key` i64 [3] is
// (seed, step, first sequence), `layer` numbers the use; see DropoutAttributes.
Tensor dropout(const Tensor& x, const Tensor& key, double p, uint32_t layer,
               Site site = Site::here());

}  // namespace faultline
