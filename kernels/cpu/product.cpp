#include "kernels/cpu/product.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/threads.h"
#include "kernels/copy.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/product_library.h"
#include "kernels/cpu/spans.h"
#include "kernels/layout.h"

namespace faultline::cpu {

namespace {
int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t multiple) { return divide_up(a, multiple) * multiple; }

// Memory that a thread keeps for its next panel. Contents do not outlive a panel.
struct Scratch {
  std::vector<float> a, b, c;
  std::vector<float> whole_b;  // read by the panels of all threads
  std::vector<bfloat16> a16, b16;

  static Scratch& of_this_thread() {
    thread_local Scratch scratch;
    return scratch;
  }
};

template <class T>
T* at_least(std::vector<T>& buffer, int64_t count) {
  if (buffer.size() < static_cast<size_t>(count)) buffer.resize(static_cast<size_t>(count));
  return buffer.data();
}

// to = from for n contiguous elements of f32 and 16-bit types, rounded to nearest even.
void convert_row(const std::byte* from, DType from_type, std::byte* to, DType to_type, int64_t n) {
  const ArithmeticSpans& spans = arithmetic_spans();
  auto* wide = reinterpret_cast<float*>(to);
  const auto* narrow = reinterpret_cast<const float*>(from);
  if (to_type == DType::f32 && from_type == DType::bf16) {
    spans.widen_bf16(reinterpret_cast<const bfloat16*>(from), wide, n);
  } else if (to_type == DType::f32 && from_type == DType::f16) {
    spans.widen_f16(reinterpret_cast<const float16*>(from), wide, n);
  } else if (from_type == DType::f32 && to_type == DType::bf16) {
    spans.narrow_bf16(narrow, reinterpret_cast<bfloat16*>(to), n);
  } else {
    spans.narrow_f16(narrow, reinterpret_cast<float16*>(to), n);
  }
}

// A matrix of dense rows over memory of our own.
template <class T>
TensorView dense_view(T* data, int64_t rows, int64_t columns) {
  TensorView view;
  view.data = reinterpret_cast<std::byte*>(data);
  view.dtype = dtype_of<T>();
  view.shape = {rows, columns};
  view.strides = {columns, 1};
  return view;
}

// Copies between matrices of one shape. Rows that are dense on both sides go through vector loops.
void copy_matrix(const TensorView& from, const TensorView& to) {
  if (from.dtype == to.dtype || from.strides[1] != 1 || to.strides[1] != 1) {
    return copy_elements(from, to, 1);
  }
  for (int64_t i = 0; i < from.shape[0]; ++i) {
    convert_row(moved(from, i * from.strides[0]).data, from.dtype,
                moved(to, i * to.strides[0]).data, to.dtype, from.shape[1]);
  }
}

// The matrix as the library takes it, if its strides allow it as it lies.
template <class T>
std::optional<DenseMatrix<T>> as_dense(const TensorView& matrix) {
  if (matrix.dtype != dtype_of<T>()) return {};
  const auto* data = reinterpret_cast<const T*>(matrix.data);
  const int64_t rows = matrix.shape[0];
  const int64_t columns = matrix.shape[1];
  // The stride of a dimension with one index is never used.
  const bool rows_dense = matrix.strides[1] == 1 || columns == 1;
  const bool columns_dense = matrix.strides[0] == 1 || rows == 1;
  if (rows_dense && rows == 1) return DenseMatrix<T>{data, columns, false};
  if (columns_dense && columns == 1) return DenseMatrix<T>{data, rows, true};
  if (rows_dense && matrix.strides[0] >= columns) {
    return DenseMatrix<T>{data, matrix.strides[0], false};
  }
  if (columns_dense && matrix.strides[1] >= rows) {
    return DenseMatrix<T>{data, matrix.strides[1], true};
  }
  return {};
}

// The matrix copied into `buffer` without gaps, and converted to T. The dimension that was dense
// stays so: rows stay rows.
template <class T>
DenseMatrix<T> packed(const TensorView& matrix, std::vector<T>& buffer) {
  const bool by_column = matrix.strides[0] == 1 && matrix.strides[1] != 1;
  const TensorView from = by_column ? transposed(matrix) : matrix;
  T* data = at_least(buffer, from.numel());
  copy_matrix(from, dense_view(data, from.shape[0], from.shape[1]));
  return {data, from.shape[1], by_column};
}

// The matrix as it lies where the library takes that, else packed.
template <class T>
DenseMatrix<T> dense(const TensorView& matrix, std::vector<T>& buffer) {
  if (const auto direct = as_dense<T>(matrix)) return *direct;
  return packed(matrix, buffer);
}

// Every row of c becomes the bias, or zeros.
void start_rows(const float* bias, float* c, int64_t leading, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    if (bias == nullptr) {
      std::fill_n(c + i * leading, columns, 0.0F);
    } else {
      std::copy_n(bias, columns, c + i * leading);
    }
  }
}

ProductSize size_of_product(const TensorView& a, const TensorView& b) {
  return {.m = a.shape[0], .n = b.shape[1], .k = a.shape[1]};
}

void panel_f32(const TensorView& a, const TensorView& b, const float* bias, const TensorView& c) {
  // A copy is read this many times, or it does not pay.
  constexpr int64_t kReads = 32;
  Scratch& scratch = Scratch::of_this_thread();
  const ProductSize size = size_of_product(a, b);
  DenseMatrix<float> left = dense(a, scratch.a);
  DenseMatrix<float> right = dense(b, scratch.b);
  if (left.transposed && size.n >= kReads && reads_slowly(size, left.leading)) {
    left = packed(a, scratch.a);
  }
  if (!right.transposed && size.m >= kReads && reads_slowly(size, right.leading)) {
    right = packed(b, scratch.b);
  }
  const int64_t leading = c.shape[0] == 1 ? c.shape[1] : c.strides[0];
  float* result = c.as<float>();
  if (bias != nullptr) start_rows(bias, result, leading, c.shape[0], c.shape[1]);
  library_product(size, left, right, bias == nullptr ? Into::fresh : Into::sum, result, leading);
}

// A product that does little with each element of b: it is bound by reading b, which the library
// copies first. Measured on Zen 4 with two threads, [m, 768] x [768, 3072] takes 286, 332, 374 and
// 909 us for 1, 2, 4 and 8 rows; the library takes 574 for 9.
constexpr int64_t kFewRows = 4;
constexpr Panels kFewRowsPanels{.rows = kFewRows, .columns = 64};
// Above so many elements of b, a second thread brings its share of the memory's pace.
constexpr int64_t kParallelReads = int64_t{1} << 16;

bool reads_b_once(const TensorView& a, const TensorView& b, const TensorView& c) {
  const bool f32 = a.dtype == DType::f32 && b.dtype == DType::f32 && c.dtype == DType::f32;
  return f32 && c.shape[-2] <= kFewRows && b.strides[-2] == 1 && a.shape[-1] > 0;
}

void panel_few_rows(const TensorView& a, const TensorView& b, const float* bias,
                    const TensorView& c) {
  TensorView x = a;
  if (a.strides[1] != 1) {
    x = dense_view(at_least(Scratch::of_this_thread().a, a.numel()), a.shape[0], a.shape[1]);
    copy_matrix(a, x);
  }
  few_rows_product()({.m = a.shape[0],
                      .n = b.shape[1],
                      .k = a.shape[1],
                      .x = x.as<float>(),
                      .x_leading = x.strides[0],
                      .w = b.as<float>(),
                      .w_leading = b.strides[1],
                      .bias = bias,
                      .y = c.as<float>(),
                      .y_leading = c.strides[0]});
}

// Sizes of the tiles that are widened to f32 at a time: together about 1 MiB.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 256;
constexpr int64_t kTileDepth = 512;

// A panel with 16-bit operands or result, tile by tile through f32.
void panel_widened(const TensorView& a, const TensorView& b, const float* bias,
                   const TensorView& c) {
  Scratch& scratch = Scratch::of_this_thread();
  for (int64_t j = 0; j < c.shape[1]; j += kTileColumns) {
    const int64_t columns = std::min(kTileColumns, c.shape[1] - j);
    for (int64_t i = 0; i < c.shape[0]; i += kTileRows) {
      const int64_t rows = std::min(kTileRows, c.shape[0] - i);
      float* sums = at_least(scratch.c, kTileRows * kTileColumns);
      start_rows(bias == nullptr ? nullptr : bias + j, sums, columns, rows, columns);
      for (int64_t p = 0; p < a.shape[1]; p += kTileDepth) {
        const int64_t depth = std::min(kTileDepth, a.shape[1] - p);
        const TensorView left = slice_of(slice_of(a, 0, i, rows), 1, p, depth);
        const TensorView right = slice_of(slice_of(b, 0, p, depth), 1, j, columns);
        library_product({.m = rows, .n = columns, .k = depth}, dense(left, scratch.a),
                        dense(right, scratch.b), Into::sum, sums, columns);
      }
      copy_matrix(dense_view(sums, rows, columns),
                  slice_of(slice_of(c, 0, i, rows), 1, j, columns));
    }
  }
}

void panel_bf16(const TensorView& a, const TensorView& b, const float* bias, const TensorView& c) {
  Scratch& scratch = Scratch::of_this_thread();
  library_product(size_of_product(a, b), dense(a, scratch.a16), dense(b, scratch.b16), bias, c);
}

using Panel = void (*)(const TensorView& a, const TensorView& b, const float* bias,
                       const TensorView& c);

Panel panel_for(DType a, DType b, DType c) {
  if (a == DType::f32 && b == DType::f32 && c == DType::f32) return panel_f32;
  const bool bf16_operands = a == DType::bf16 && b == DType::bf16;
  if (bf16_operands && c != DType::f16 && multiplies_bf16()) return panel_bf16;
  return panel_widened;
}

// Below this many multiplications, waking threads costs more than they save.
constexpr int64_t kParallelWork = int64_t{1} << 21;

void check_dtype(const TensorView& view) {
  invariant(view.dtype == DType::f32 || view.dtype == DType::bf16 || view.dtype == DType::f16,
            "product: takes f32, bf16 and f16, got {}; others go to the reference",
            name(view.dtype));
}

// The bias as f32 without gaps, in `buffer` unless it lies so already; null when there is none.
const float* bias_in_f32(const TensorView& bias, std::vector<float>& buffer) {
  if (!bias.defined()) return nullptr;
  check_dtype(bias);
  if (bias.dtype == DType::f32 && bias.is_contiguous()) return bias.as<float>();
  TensorView row = bias;
  row.shape = {1, bias.shape[0]};
  row.strides = {0, bias.strides[0]};
  copy_matrix(row, dense_view(at_least(buffer, bias.shape[0]), 1, bias.shape[0]));
  return buffer.data();
}

// The right matrix of a product, copied to lie along n where the library is that much faster. The
// copy is kept as scratch, so a large one, such as a vocabulary's, is read as it lies.
TensorView along_rows(const TensorView& b, int64_t m, int threads) {
  constexpr int64_t kMostCopied = int64_t{1} << 22;
  if (b.numel() > kMostCopied) return b;
  if (b.dtype != DType::f32 || b.shape.rank() != 2 || b.strides[0] != 1 || b.strides[1] == 1) {
    return b;
  }
  if (!wants_rows({.m = m, .n = b.shape[1], .k = b.shape[0]})) return b;
  float* data = at_least(Scratch::of_this_thread().whole_b, b.numel());
  const TensorView rows = dense_view(data, b.shape[0], b.shape[1]);
  copy_elements(b, rows, threads);
  return rows;
}

// A batch of matrices, by number in row-major order of the leading dimensions.
class Matrices {
 public:
  explicit Matrices(const TensorView& view) : matrix_(view) {
    const int lead = view.shape.rank() - 2;
    matrix_.shape = {view.shape[-2], view.shape[-1]};
    matrix_.strides = {view.strides[-2], view.strides[-1]};
    for (int d = 0; d < lead; ++d) {
      lead_.push_back(view.shape[d]);
      lead_strides_.push_back(view.strides[d]);
      count_ *= view.shape[d];
    }
  }
  int64_t count() const { return count_; }
  int64_t rows() const { return matrix_.shape[0]; }
  int64_t columns() const { return matrix_.shape[1]; }
  TensorView operator[](int64_t i) const {
    return moved(matrix_, offset_of(lead_, lead_strides_, i));
  }

 private:
  TensorView matrix_;
  Shape lead_;
  Strides lead_strides_;
  int64_t count_ = 1;
};
}  // namespace

// At least four panels for the batch as a whole. Thinner ones lose speed: on AVX2 eight panels of
// NN 2048 x 1536 x 384 run at 78 GFLOP/s, four at 107; on AVX-512 NT 1024 x 768 x 3072 at 84 and
// 95; and 128 x 65 x 384 in 32, 64 and 128 rows at 55, 69 and 80. Only very long results give more.
Panels panels_of(int64_t batch, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kThinnest = 64;
  constexpr int64_t kLong = 1024;
  constexpr int64_t kMost = 16;
  Panels panels{.rows = std::max<int64_t>(m, 1), .columns = std::max<int64_t>(n, 1)};
  if (m * n * k < kParallelWork) return panels;
  int64_t& longer = m >= n ? panels.rows : panels.columns;
  int64_t wanted = divide_up(4, std::max<int64_t>(batch, 1));
  while (wanted * batch < kMost && longer / (2 * wanted) >= kLong) wanted *= 2;
  if (wanted > 1) longer = std::max(kThinnest, round_up(divide_up(longer, wanted), 32));
  return panels;
}

void batched_product(const TensorView& a, const TensorView& b, const TensorView& bias,
                     const TensorView& c, int threads) {
  for (const TensorView* view : {&a, &b, &c}) check_dtype(*view);
  if (c.numel() == 0) return;
  prepare_product_library();
  const Matrices left(a);
  const Matrices right(a.dtype == DType::f32 ? along_rows(b, a.shape[-2], threads) : b);
  const Matrices result(c);
  const int64_t m = result.rows();
  const int64_t n = result.columns();
  const int64_t k = left.columns();
  invariant(n == 1 || c.strides[-1] == 1, "product: the result needs dense rows");

  std::vector<float> bias_buffer;
  const float* bias_values = bias_in_f32(bias, bias_buffer);
  const bool once = reads_b_once(a, b, c);
  const Panel run = once     ? panel_few_rows
                    : k == 0 ? panel_widened
                             : panel_for(a.dtype, b.dtype, c.dtype);
  const Panels size = once ? kFewRowsPanels : panels_of(result.count(), m, n, k);
  const int64_t down = divide_up(m, size.rows);
  const int64_t across = divide_up(n, size.columns);
  const auto panel = [&](int64_t task) {
    const int64_t element = task / (down * across);
    const int64_t i = task / across % down * size.rows;
    const int64_t j = task % across * size.columns;
    const int64_t rows = std::min(size.rows, m - i);
    const int64_t columns = std::min(size.columns, n - j);
    run(slice_of(left[element], 0, i, rows), slice_of(right[element], 1, j, columns),
        bias_values == nullptr ? nullptr : bias_values + j,
        slice_of(slice_of(result[element], 0, i, rows), 1, j, columns));
  };
  const bool worth_threads =
      once ? result.count() * n * k >= kParallelReads : result.count() * m * n * k >= kParallelWork;
  parallel_for(result.count() * down * across, worth_threads ? threads : 1, panel);
}

}  // namespace faultline::cpu
