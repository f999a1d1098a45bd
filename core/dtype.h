#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/float16.h"

namespace faultline {

// Element types. c128 exists for one purpose: derivatives by complex step through the reference
// kernels. It is never read from or written to a file.
enum class DType : uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean, c128 };

constexpr int kDTypeCount = 9;

// "f32", ..., "bool", "c128".
std::string_view name(DType dtype);

// The dtype of that name; throws InvalidArgument that lists the names.
DType dtype_from_name(std::string_view text);

// Bytes of an element.
constexpr size_t size_of(DType dtype) {
  constexpr size_t kSizes[kDTypeCount] = {4, 8, 2, 2, 4, 8, 1, 1, 16};
  return kSizes[static_cast<int>(dtype)];
}

// Whether the dtype holds fractions, and can have a gradient.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 ||
         dtype == DType::bf16 || dtype == DType::c128;
}

// The dtype of a C++ type; another type does not compile.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, float>)
    return DType::f32;
  else if constexpr (std::same_as<T, double>)
    return DType::f64;
  else if constexpr (std::same_as<T, float16>)
    return DType::f16;
  else if constexpr (std::same_as<T, bfloat16>)
    return DType::bf16;
  else if constexpr (std::same_as<T, int32_t>)
    return DType::i32;
  else if constexpr (std::same_as<T, int64_t>)
    return DType::i64;
  else if constexpr (std::same_as<T, uint8_t>)
    return DType::u8;
  else if constexpr (std::same_as<T, bool>)
    return DType::boolean;
  else {
    static_assert(std::same_as<T, std::complex<double>>, "no dtype holds this type");
    return DType::c128;
  }
}

// Calls `body.template operator()<T>()` with the C++ type of `dtype`.
template <class Body>
decltype(auto) with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f64:
      return body.template operator()<double>();
    case DType::f16:
      return body.template operator()<float16>();
    case DType::bf16:
      return body.template operator()<bfloat16>();
    case DType::i32:
      return body.template operator()<int32_t>();
    case DType::i64:
      return body.template operator()<int64_t>();
    case DType::u8:
      return body.template operator()<uint8_t>();
    case DType::boolean:
      return body.template operator()<bool>();
    case DType::c128:
      break;
  }
  return body.template operator()<std::complex<double>>();
}

// A float as an integer: truncated, at the ends of the range what lies beyond them, and 0 for a
// NaN. (The cast of such a value is undefined in C++.)
template <class To>
To truncated(double value) {
  constexpr auto kLeast = std::numeric_limits<To>::min();
  constexpr auto kMost = std::numeric_limits<To>::max();
  // The first double beyond the range: a power of two, so it is exact.
  constexpr To kHalf = kMost / 2 + 1;
  constexpr double kBeyond = 2.0 * static_cast<double>(kHalf);
  if (value >= kBeyond) return kMost;
  if (value <= static_cast<double>(kLeast)) return kLeast;
  return value == value ? static_cast<To>(value) : To{0};
}

// Converts one element between any two dtypes. Floats to 16 bits round to nearest even; to integers
// they go through truncated(); anything to bool is "not zero"; a complex number gives its real
// part.
template <class To, class From>
To convert(From value) {
  if constexpr (std::same_as<To, From>)
    return value;
  else if constexpr (std::same_as<From, float16> || std::same_as<From, bfloat16>)
    return convert<To>(static_cast<float>(value));
  else if constexpr (std::same_as<From, std::complex<double>>)
    return convert<To>(value.real());
  else if constexpr (std::same_as<To, std::complex<double>>)
    return {static_cast<double>(value), 0.0};
  else if constexpr (std::same_as<To, bool>)
    return value != From{0};
  else if constexpr (std::same_as<To, float16> || std::same_as<To, bfloat16>) {
    if constexpr (std::same_as<From, float>)
      return To(value);
    else
      return To(static_cast<double>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return truncated<To>(static_cast<double>(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace faultline
