#include "core/shape.h"

#include <fmt/format.h>

#include "core/error.h"

namespace faultline {

Dims::Dims(std::span<const int64_t> values) {
  require(values.size() <= kMaxRank, "shape: expected at most {} dimensions, got {}", kMaxRank,
          values.size());
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int32_t>(values.size());
}

void Dims::push_back(int64_t value) {
  require(rank_ < kMaxRank, "shape: expected at most {} dimensions, got {}", kMaxRank, rank_ + 1);
  values_[rank_++] = value;
}

Dims Dims::without(int i) const {
  Dims result;
  for (int d = 0; d < rank_; ++d) {
    if (d != i) result.push_back(values_[d]);
  }
  return result;
}

int64_t numel(const Shape& shape) {
  int64_t count = 1;
  bool has_zero = false;
  for (const int64_t size : shape) {
    require(size >= 0, "shape: sizes must not be negative, got {}", shape);
    has_zero = has_zero || size == 0;
    require(size == 0 || !__builtin_mul_overflow(count, size, &count),
            "shape: {} has more elements than 2^63 - 1", shape);
  }
  return has_zero ? 0 : count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

Shape broadcast(const Shape& a, const Shape& b, const char* op) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int d = rank; d >= 1; --d) {
    const int64_t x = d <= a.rank() ? a[-d] : 1;
    const int64_t y = d <= b.rank() ? b[-d] : 1;
    require(x == y || x == 1 || y == 1,
            "{}: shapes {} and {} do not broadcast: sizes {} and {} differ in dimension {} from "
            "the right and neither is 1",
            op, a, b, x, y, d);
    result.push_back(x == 1 ? y : x);
  }
  return result;
}

Strides broadcast_strides(const Shape& from, const Strides& strides, const Shape& to) {
  Strides result = to;
  const int lead = to.rank() - from.rank();
  for (int d = 0; d < to.rank(); ++d) {
    const bool repeated = d < lead || (from[d - lead] == 1 && to[d] != 1);
    result[d] = repeated ? 0 : strides[d - lead];
  }
  return result;
}

int normalize_dim(int64_t dim, int rank, const char* op) {
  require(dim >= -rank && dim < rank, "{}: dimension {} is out of range for rank {}", op, dim,
          rank);
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int d = 0; d < dims.rank(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", dims[d]);
  return text + "]";
}

}  // namespace faultline

auto fmt::formatter<faultline::Dims>::format(const faultline::Dims& dims,
                                             fmt::format_context& context) const
    -> fmt::format_context::iterator {
  return fmt::formatter<std::string_view>::format(faultline::to_string(dims), context);
}
