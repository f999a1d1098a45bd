#include "diagnose/values.h"

#include <algorithm>
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
  values.resize(static_cast<size_t>((count + stride - 1) / stride));
  with_type(view.dtype, [&]<class T>() {
    const T* data = view.as<T>();
    int64_t n = 0;
    for (double& value : values) {
      value = convert<double>(data[contiguous ? n : offset_of(view, n)]);
      n += stride;
    }
  });
  return values;
}

std::vector<double> read_values(const TensorView& view, int64_t first, int64_t count) {
  std::vector<double> values;
  read_values(view, first, count, values);
  return values;
}

void read_values(const TensorView& view, int64_t first, int64_t count,
                 std::vector<double>& values) {
  values.resize(static_cast<size_t>(count));
  with_type(view.dtype, [&]<class T>() {
    const T* data = view.as<T>();
    if (view.is_contiguous()) {
      std::transform(data + first, data + first + count, values.begin(),
                     [](T value) { return convert<double>(value); });
      return;
    }
    for (double& value : values) value = convert<double>(data[offset_of(view, first++)]);
  });
}

double larger_or_nan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

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

// All exponent bits set: NaN or infinite. Integer arithmetic and pieces of one length, so that the
// inner loop vectorises.
bool any_non_finite(const float* data, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  constexpr int64_t kPiece = 256;
  const auto exponent = [](float value) { return std::bit_cast<uint32_t>(value) & kExponent; };
  uint32_t largest = 0;
  int64_t done = 0;
  for (; done + kPiece <= count && largest != kExponent; done += kPiece) {
    for (int64_t i = 0; i < kPiece; ++i) largest = std::max(largest, exponent(data[done + i]));
  }
  for (; done < count; ++done) largest = std::max(largest, exponent(data[done]));
  return largest == kExponent;
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
