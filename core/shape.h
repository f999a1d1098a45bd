#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace faultline {

constexpr int kMaxRank = 6;

// Sizes (or strides, in elements) of up to six dimensions. Trivially copyable, so it can be part of
// a launch.
class Dims {
 public:
  constexpr Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  // Throws InvalidArgument when there are more than kMaxRank.
  explicit Dims(std::span<const int64_t> values);

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  // Index from the front, or from the back when negative. Unchecked beyond that.
  int64_t& operator[](int i) { return values_[i < 0 ? i + rank_ : i]; }
  int64_t operator[](int i) const { return values_[i < 0 ? i + rank_ : i]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + rank_; }

  void push_back(int64_t value);
  // Removes dimension `i` (not negative).
  Dims without(int i) const;

  bool operator==(const Dims& other) const {
    return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int32_t rank_ = 0;
};

using Shape = Dims;
using Strides = Dims;

// Number of elements; 1 for a scalar. Throws InvalidArgument on a negative size or overflow.
int64_t numel(const Shape& shape);

// Row-major strides in elements.
Strides contiguous_strides(const Shape& shape);

// NumPy rule: align right, sizes equal or one of them 1. `op` names the operation in the error.
Shape broadcast(const Shape& a, const Shape& b, const char* op);

// Strides that read `from` as if it had shape `to` (0 where a size is repeated).
Strides broadcast_strides(const Shape& from, const Strides& strides, const Shape& to);

// `dim` in [-rank, rank) as [0, rank); throws InvalidArgument naming `op` otherwise.
int normalize_dim(int64_t dim, int rank, const char* op);

// "[2, 3]". Inside require() and fail() write the Dims itself: it is formatted only on an error.
std::string to_string(const Dims& dims);

}  // namespace faultline

template <>
struct fmt::formatter<faultline::Dims> : fmt::formatter<std::string_view> {
  auto format(const faultline::Dims& dims, fmt::format_context& context) const
      -> fmt::format_context::iterator;
};
