#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "kernels/attributes.h"

namespace faultline {

// Whether the rule of MaskAttributes lets a query at `position` see key k.
inline bool sees(const MaskAttributes& mask, int64_t position, int64_t k) {
  if (k < mask.prefix) return true;
  if (mask.causal && k > position) return false;
  return mask.window == 0 || std::abs(k - position) < mask.window || k < mask.sinks;
}

// The same rule as ranges, for kernels that skip what nobody sees. A query sees the keys [0, first)
// and [begin, end), first <= begin <= end. All three grow with the position.
struct VisibleKeys {
  int64_t first;
  int64_t begin;
  int64_t end;

  int64_t count() const { return first + end - begin; }
  // Where the last range ends that has a key.
  int64_t reach() const { return begin < end ? end : first; }
};

inline VisibleKeys visible_keys(const MaskAttributes& mask, int64_t position, int64_t keys) {
  const int64_t past = mask.causal ? std::clamp<int64_t>(position + 1, 0, keys) : keys;
  const int64_t prefix = std::min(mask.prefix, keys);
  if (mask.window == 0) {
    const int64_t first = std::max(prefix, past);
    return {first, first, first};
  }
  const int64_t window = std::min(mask.window, keys + std::abs(position));  // no more can matter
  const int64_t first = std::max(prefix, std::min(mask.sinks, past));
  const int64_t begin = std::clamp(position - window + 1, first, keys);
  return {first, begin, std::clamp(std::min(past, position + window), begin, keys)};
}

// The positions [begin, end) whose queries see key k.
struct PositionRange {
  int64_t begin;
  int64_t end;
};

inline PositionRange positions_that_see(const MaskAttributes& mask, int64_t k) {
  constexpr int64_t kFar = INT64_MAX / 4;  // beyond every position, and no sum overflows
  if (k < mask.prefix) return {-kFar, kFar};
  const bool windowed = mask.window > 0 && k >= mask.sinks;
  const int64_t window = windowed ? std::min(mask.window, kFar) : kFar;
  return {mask.causal ? k : k - window + 1, k + window};
}

}  // namespace faultline
