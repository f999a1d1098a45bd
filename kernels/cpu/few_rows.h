#pragma once

#include <cstdint>

namespace faultline::cpu {

// y[i][j] = bias[j] + sum over p of x[i][p] w[j][p], in f32, for m rows of x and n rows of w; rows
// lie `leading` elements apart, and `bias` may be null. The order of a sum depends on k and the
// instruction set only: an element has the same bits whatever m and n are.
struct FewRows {
  int64_t m = 0, n = 0, k = 0;
  const float* x = nullptr;
  int64_t x_leading = 0;
  const float* w = nullptr;
  int64_t w_leading = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_leading = 0;
};

using FewRowsFunction = void (*)(const FewRows&);

// The function of the active level. Throws as active_isa() does.
FewRowsFunction few_rows_product();

}  // namespace faultline::cpu
