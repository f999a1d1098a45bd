// Matrix products of the reference, through Eigen, in double and std::complex<double>. Tensors of
// other dtypes are widened to double and the result is rounded once.

#define EIGEN_DONT_PARALLELIZE  // threads take whole products here; Eigen's own would change bits
#include <Eigen/Core>

#include "core/threads.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A view's last two dimensions as matrices, addressed by the number of the leading index in `lead`,
// to which the view's own leading dimensions are broadcast.
template <class T>
class Matrices {
 public:
  Matrices(const TensorView& view, const Shape& lead)
      : reader_(view),
        writer_(view),
        lead_(lead),
        rows_(view.shape[-2]),
        columns_(view.shape[-1]),
        row_stride_(view.strides[-2]),
        column_stride_(view.strides[-1]) {
    const int rank = view.shape.rank();
    const Shape own = view.shape.without(rank - 1).without(rank - 2);
    const Strides strides = view.strides.without(rank - 1).without(rank - 2);
    lead_strides_ = broadcast_strides(own, strides, lead);
  }

  Matrix<T> read(int64_t n) const {
    Matrix<T> result(rows_, columns_);
    const int64_t first = offset_of(lead_, lead_strides_, n);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        result(i, j) = reader_[first + i * row_stride_ + j * column_stride_];
      }
    }
    return result;
  }

  void write(int64_t n, const Matrix<T>& matrix) const {
    const int64_t first = offset_of(lead_, lead_strides_, n);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        writer_.put(first + i * row_stride_ + j * column_stride_, matrix(i, j));
      }
    }
  }

 private:
  Reader<T> reader_;
  Writer<T> writer_;
  Shape lead_;
  Strides lead_strides_;
  int64_t rows_, columns_, row_stride_, column_stride_;
};

template <class T>
Matrix<T> product(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> result = Matrix<T>::Zero(a.rows(), b.cols());
  if (a.cols() != 0) result.noalias() += a * b;
  return result;
}
}  // namespace

// y[..., m, n] = sum over k of a[..., m, k] b[..., k, n], leading dimensions broadcast.
void matmul(const KernelArgs& args) {
  const Shape& out = args.outputs[0].shape;
  const Shape lead = out.without(out.rank() - 1).without(out.rank() - 2);
  int64_t count = 1;
  for (const int64_t size : lead) count *= size;
  with_real_scalar(args, [&]<class T>() {
    const Matrices<T> a(args.inputs[0], lead);
    const Matrices<T> b(args.inputs[1], lead);
    const Matrices<T> y(args.outputs[0], lead);
    parallel_for(count, args.threads,
                 [&](int64_t n) { y.write(n, product<T>(a.read(n), b.read(n))); });
  });
}

// y[..., o] = sum over i of x[..., i] w[o, i], plus bias[o] where there is one. Rows of x go in
// blocks of fixed size, so that memory and the order of sums do not depend on threads.
void linear(const KernelArgs& args) {
  constexpr int64_t kBlock = 256;
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    const Matrix<T> w = Matrices<T>(args.inputs[1], {}).read(0);
    std::vector<T> bias(static_cast<size_t>(w.rows()), T(0));
    if (args.inputs[2].defined()) bias = read_all<T>(args.inputs[2]);
    parallel_for((x.count() + kBlock - 1) / kBlock, args.threads, [&](int64_t block) {
      const int64_t first = block * kBlock;
      const int64_t count = std::min(kBlock, x.count() - first);
      Matrix<T> rows(count, x.length());
      for (int64_t i = 0; i < count; ++i) {
        const std::vector<T> row = x.read(first + i);
        std::copy(row.begin(), row.end(), rows.row(i).begin());
      }
      const Matrix<T> result = product<T>(rows, w.transpose());
      std::vector<T> sums(bias.size());
      for (int64_t i = 0; i < count; ++i) {
        for (size_t o = 0; o < sums.size(); ++o) {
          sums[o] = result(i, static_cast<int64_t>(o)) + bias[o];
        }
        y.write(first + i, sums);
      }
    });
  });
}

}  // namespace faultline::reference
