#pragma once

#include <cstdint>
#include <string>

#include "core/float16.h"
#include "core/launch.h"

// What the products need of a library: one product on one thread. oneDNN gives it in
// onednn_product.cpp, the build without it takes Eigen in no_onednn_product.cpp.
namespace faultline::cpu {

struct ProductSize {
  int64_t m = 0, n = 0, k = 0;  // [m, k] times [k, n]; each at least 1
};

// A matrix with one dense dimension: element (i, j) is data[i * leading + j], or
// data[j * leading + i] when transposed.
template <class T>
struct DenseMatrix {
  const T* data = nullptr;
  int64_t leading = 0;
  bool transposed = false;
};

enum class Into { fresh, sum };

// Loads the library and limits it to the level of active_isa(). Call it before the functions below,
// outside of any parallel region; later calls cost nothing. Throws as active_isa() does, and Error
// when the library is in use already at another level.
void prepare_product_library();

// c = a b, or c += a b for Into::sum; c has rows of n, `c_leading` apart. Into::fresh never reads
// c.
void library_product(const ProductSize& size, const DenseMatrix<float>& a,
                     const DenseMatrix<float>& b, Into into, float* c, int64_t c_leading);

// Whether the library reads an f32 operand slowly where it lies, dense along m or n with `leading`
// elements from one k to the next, so that a copy without gaps pays.
bool reads_slowly(const ProductSize& size, int64_t leading);

// Whether the library is so much slower with a right f32 operand that is dense along k than with
// one dense along n that a transposed copy pays.
bool wants_rows(const ProductSize& size);

// Whether the library multiplies bf16 with instructions of this CPU, within the active level.
bool multiplies_bf16();

// c = a b + bias, summed in f32 and rounded once. c is a bf16 or f32 matrix [m, n] with dense rows;
// `bias` has n elements or is null. Only where multiplies_bf16().
void library_product(const ProductSize& size, const DenseMatrix<bfloat16>& a,
                     const DenseMatrix<bfloat16>& b, const float* bias, const TensorView& c);

}  // namespace faultline::cpu
