#pragma once

#include <vector>

#include "core/tensor.h"

namespace faultline::nn {

// Which keys a query may see: a predicate over (batch, query, key), never a tensor that can
// broadcast to the wrong axis. A query sees a key when every part that is set allows it.
struct Mask {
  bool causal = true;
  // Position of the first query among the keys (0 without a cache).
  int64_t query_offset = 0;
  Tensor key_valid;  // bool [B, K], padding is false; may be undefined
  Tensor documents;  // i32 [B, K], the document of each position; may be undefined
};

// The predicate spelled out, for oracles and detectors: 1 where query q of batch b may see key k,
// in the order [B, Q, K].
std::vector<uint8_t> visibility(const Mask& mask, int64_t batch, int64_t queries, int64_t keys);

}  // namespace faultline::nn
