#include "diagnose/values.h"

#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/layout.h"

namespace faultline::diagnose {

std::vector<double> sample(const TensorView& view, int64_t stride) {
  std::vector<double> values;
  if (view.data == nullptr) return values;
  const int64_t count = view.numel();
  const bool contiguous = view.is_contiguous();
  values.reserve(static_cast<size_t>(count / stride + 1));
  with_type(view.dtype, [&]<class T>() {
    const T* data = view.as<T>();
    for (int64_t n = 0; n < count; n += stride) {
      values.push_back(convert<double>(data[contiguous ? n : offset_of(view, n)]));
    }
  });
  return values;
}

std::vector<double> read_values(const TensorView& view, int64_t first, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  const bool contiguous = view.is_contiguous();
  with_type(view.dtype, [&]<class T>() {
    const T* data = view.as<T>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = first + i;
      values[static_cast<size_t>(i)] = convert<double>(data[contiguous ? n : offset_of(view, n)]);
    }
  });
  return values;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    default:
      fail("unit_roundoff: needs a floating dtype, got {}", name(dtype));
  }
}

double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1.fep127;
    case DType::f16:
      return 65504;
    case DType::f32:
      return std::numeric_limits<float>::max();
    case DType::f64:
      return std::numeric_limits<double>::max();
    default:
      fail("largest_finite: needs a floating dtype, got {}", name(dtype));
  }
}

namespace {

// All exponent bits set: NaN or infinite. Integer arithmetic, so that the loop vectorises.
bool any_non_finite(const float* data, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(data[i]) & kExponent) == kExponent);
  }
  return found != 0;
}

}  // namespace

int64_t first_non_finite(const TensorView& view) {
  if (view.data == nullptr || !is_floating(view.dtype)) return -1;
  const int64_t count = view.numel();
  const bool contiguous = view.is_contiguous();
  if (view.dtype == DType::f32 && contiguous && !any_non_finite(view.as<float>(), count)) return -1;
  return with_type(view.dtype, [&]<class T>() -> int64_t {
    const T* data = view.as<T>();
    for (int64_t n = 0; n < count; ++n) {
      if (!std::isfinite(convert<double>(data[contiguous ? n : offset_of(view, n)]))) return n;
    }
    return -1;
  });
}

}  // namespace faultline::diagnose
