// Products through Eigen, for builds without oneDNN.

#define EIGEN_DONT_PARALLELIZE  // threads take panels; Eigen's own would change bits
#include <Eigen/Core>

#include <fmt/core.h>

#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_library.h"

namespace faultline::cpu {

namespace {
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColumnMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
template <class Matrix>
using Map = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

// Calls body with the matrix as Eigen sees it.
template <class Body>
void with_map(const DenseMatrix<float>& matrix, int64_t rows, int64_t columns, const Body& body) {
  const Eigen::OuterStride<> leading(matrix.leading);
  if (matrix.transposed) {
    body(Map<const ColumnMajor>(matrix.data, rows, columns, leading));
  } else {
    body(Map<const RowMajor>(matrix.data, rows, columns, leading));
  }
}
}  // namespace

// Eigen is compiled for the baseline: there is no level to choose, but a wrong FAULTLINE_ISA is
// told.
void prepare_product_library() { static_cast<void>(active_isa()); }

void library_product(const ProductSize& size, const DenseMatrix<float>& a,
                     const DenseMatrix<float>& b, Into into, float* c, int64_t c_leading) {
  Map<RowMajor> result(c, size.m, size.n, Eigen::OuterStride<>(c_leading));
  with_map(a, size.m, size.k, [&](const auto& left) {
    with_map(b, size.k, size.n, [&](const auto& right) {
      if (into == Into::fresh) {
        result.noalias() = left * right;
      } else {
        result.noalias() += left * right;
      }
    });
  });
}

// Eigen copies both operands itself.
bool reads_slowly(const ProductSize&, int64_t) { return false; }

bool wants_rows(const ProductSize&) { return false; }

bool multiplies_bf16() { return false; }

void library_product(const ProductSize&, const DenseMatrix<bfloat16>&, const DenseMatrix<bfloat16>&,
                     const float*, const TensorView&) {
  throw InternalError("Eigen: bf16 goes through f32 here; ask multiplies_bf16() first");
}

std::string product_library() {
  return fmt::format("Eigen {}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION,
                     EIGEN_MINOR_VERSION);
}

}  // namespace faultline::cpu
