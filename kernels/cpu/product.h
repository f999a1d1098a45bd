#pragma once

#include <cstdint>
#include <string>

#include "core/launch.h"

// Matrix products in f32, bf16 and f16, summed in f32. The work is cut into panels whose borders
// depend on the sizes only, each panel is one product on one thread, and threads take panels; so
// the number of threads never changes a bit. The number of rows does: up to 4 rows of f32 times a
// matrix that is dense along k are summed in an order of their own, which is the same for 1 to 4
// rows, and more rows go through the library. A decoded token and the same one of a longer pass
// agree to rounding only.
namespace faultline::cpu {

// How a batch of products [m, k] x [k, n] is cut: each result into blocks of at most rows x
// columns.
struct Panels {
  int64_t rows = 0;
  int64_t columns = 0;
};
Panels panels_of(int64_t batch, int64_t m, int64_t n, int64_t k);

// c[i] = a[i] b[i] + bias for every index i of the leading dimensions. The views a [..., m, k] and
// b [..., k, n] have c's leading dimensions and any strides (0 repeats a matrix); c [..., m, n] has
// dense rows; each is f32, bf16 or f16. `bias` [n] may be undefined. Every element of c is rounded
// once from its f32 sum.
void batched_product(const TensorView& a, const TensorView& b, const TensorView& bias,
                     const TensorView& c, int threads);

// Name and version of the library that multiplies, for a run's config: "oneDNN 2.6.3".
std::string product_library();

}  // namespace faultline::cpu
