#include "core/dtype.h"

#include "core/error.h"

namespace faultline {
namespace {
constexpr std::string_view kNames[kDTypeCount] = {"f32", "f64", "f16",  "bf16", "i32",
                                                  "i64", "u8",  "bool", "c128"};
}

std::string_view name(DType dtype) { return kNames[static_cast<int>(dtype)]; }

DType dtype_from_name(std::string_view text) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kNames[i] == text) return static_cast<DType>(i);
  }
  fail("dtype: expected one of f32, f64, f16, bf16, i32, i64, u8, bool; got '{}'", text);
}

}  // namespace faultline
