#pragma once

#include <vector>

#include "core/tensor.h"
#include "kernels/attributes.h"

namespace faultline::nn {

// Which keys a query may see: a predicate over (batch, query, key), never a tensor that can
// broadcast to the wrong axis. A query sees a key when every part that is set allows it.
struct Mask {
  bool causal = true;
  // Position of the first query among the keys (0 without a cache).
  int64_t query_offset = 0;
  Tensor key_valid;    // bool [B, K], padding is false; may be undefined
  Tensor documents;    // i32 [B, K], the document of each position; may be undefined
  int64_t window = 0;  // keys that a query sees, itself included; 0: all
  int64_t prefix = 0;  // first keys that every query sees
  int64_t sinks = 0;   // first keys that stay visible beyond the window

  // As kernels take it.
  MaskAttributes attributes(double scale) const {
    return {causal, query_offset, scale, window, prefix, sinks};
  }
};

// The predicate spelled out, for oracles and detectors: 1 where query q of batch b may see key k,
// in the order [B, Q, K].
std::vector<uint8_t> visibility(const Mask& mask, int64_t batch, int64_t queries, int64_t keys);

}  // namespace faultline::nn
