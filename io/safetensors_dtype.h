#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "core/dtype.h"

namespace faultline {

// The names of our dtypes in a safetensors file, in the order in which a writer sorts them: the
// format's own list, from its end.
constexpr std::pair<std::string_view, DType> kSafetensorsOrder[] = {
    {"I64", DType::i64},   {"F64", DType::f64}, {"F32", DType::f32}, {"I32", DType::i32},
    {"BF16", DType::bf16}, {"F16", DType::f16}, {"U8", DType::u8},   {"BOOL", DType::boolean}};
constexpr std::string_view kSafetensorsDTypes = "F64, F32, F16, BF16, I64, I32, U8, BOOL";

constexpr std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsOrder) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

// Place of the dtype in the list above; its length when the format does not have it.
constexpr size_t safetensors_rank(DType dtype) {
  size_t rank = 0;
  for (const auto& [known, candidate] : kSafetensorsOrder) {
    if (candidate == dtype) return rank;
    ++rank;
  }
  return rank;
}

}  // namespace faultline
