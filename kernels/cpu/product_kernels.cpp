// The ops matmul and linear for f32, bf16 and f16: their layouts as batches of matrices.

#include <optional>
#include <vector>

#include "kernels/copy.h"
#include "kernels/cpu/product.h"
#include "kernels/kernels.h"
#include "kernels/layout.h"

namespace faultline::cpu {

namespace {
int64_t leading_count(const Shape& shape) {
  int64_t count = 1;
  for (int d = 0; d + 2 < shape.rank(); ++d) count *= shape[d];
  return count;
}

// The view [..., columns] as one matrix [rows, columns], if its rows lie at one distance.
std::optional<TensorView> as_one_matrix(const TensorView& view) {
  int64_t rows = 1;
  int64_t distance = 0;
  for (int d = view.shape.rank() - 2; d >= 0; --d) {
    if (view.shape[d] == 1) continue;
    if (rows != 1 && view.strides[d] != distance * rows) return {};
    if (rows == 1) distance = view.strides[d];
    rows *= view.shape[d];
  }
  TensorView matrix = view;
  matrix.shape = {rows, view.shape[-1]};
  matrix.strides = {distance, view.strides[-1]};
  return matrix;
}

// The same of any view: rows at several distances are copied together into `buffer`.
TensorView one_matrix(const TensorView& view, std::vector<std::byte>& buffer, int threads) {
  if (const auto direct = as_one_matrix(view)) return *direct;
  buffer.resize(static_cast<size_t>(view.numel()) * size_of(view.dtype));
  TensorView copy = view;
  copy.data = buffer.data();
  copy.strides = contiguous_strides(view.shape);
  copy_elements(view, copy, threads);
  return *as_one_matrix(copy);
}

// All rows times one matrix: one product, whatever the leading dimensions are.
void rows_times(const TensorView& x, const TensorView& matrix, const TensorView& bias,
                const TensorView& y, int threads) {
  if (y.numel() == 0) return;
  std::vector<std::byte> buffer;
  batched_product(one_matrix(x, buffer, threads), matrix, bias, *as_one_matrix(y), threads);
}

TensorView expanded(const TensorView& view, const Shape& like) {
  Shape shape = like;
  shape[-2] = view.shape[-2];
  shape[-1] = view.shape[-1];
  TensorView result = view;
  result.shape = shape;
  result.strides = broadcast_strides(view.shape, view.strides, shape);
  return result;
}
}  // namespace

// y[..., m, n] = sum over k of a[..., m, k] b[..., k, n], leading dimensions broadcast. Which way a
// product goes is chosen by the shapes alone, so that the same shapes always give the same bits.
void matmul(const KernelArgs& args) {
  const TensorView& a = args.inputs[0];
  const TensorView& b = args.inputs[1];
  const TensorView& y = args.outputs[0];
  invariant(y.is_contiguous(), "matmul: the result is contiguous");
  if (leading_count(b.shape) == 1 && b.shape.rank() <= a.shape.rank()) {
    TensorView matrix = b;
    matrix.shape = {b.shape[-2], b.shape[-1]};
    matrix.strides = {b.strides[-2], b.strides[-1]};
    return rows_times(a, matrix, {}, y, args.threads);
  }
  batched_product(expanded(a, y.shape), expanded(b, y.shape), {}, y, args.threads);
}

// y[..., o] = sum over i of x[..., i] w[o, i], plus bias[o] where there is one.
void linear(const KernelArgs& args) {
  invariant(args.outputs[0].is_contiguous(), "linear: the result is contiguous");
  rows_times(args.inputs[0], transposed(args.inputs[1]), args.inputs[2], args.outputs[0],
             args.threads);
}

}  // namespace faultline::cpu
