#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace faultline::nn {

// A batch of sequences of different lengths, each preceded by so much padding that all end
// together. Padding takes slots, but no position: the first token of every sequence stands at 0.
class LeftPadding {
 public:
  // For sequences of these lengths, each at least 1.
  explicit LeftPadding(const std::vector<int64_t>& lengths);

  // Slots of a row: the longest length.
  int64_t slots() const { return slots_; }
  // Padding of each row.
  const std::vector<int64_t>& pads() const { return pads_; }
  // Whether all lengths are equal; then the tensors below are undefined, which means the same and
  // costs nothing.
  bool none() const { return none_; }

  // i32 [B, count]: positions of slots first, first + 1, ... of each row; 0 in the padding.
  Tensor positions(int64_t first, int64_t count) const;
  // bool [B, slots]: false in the padding.
  Tensor key_valid(int64_t slots) const;

 private:
  std::vector<int64_t> pads_;
  int64_t slots_ = 0;
  bool none_ = true;
};

}  // namespace faultline::nn
