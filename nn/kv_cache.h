#pragma once

#include "core/tensor.h"

namespace faultline::nn {

// What attention needs of a cache of keys and values. A forward pass of T new positions calls
// `append` once for each layer, in order; all layers of a pass append the same T.
class KvCache {
 public:
  struct All {
    Tensor k_BGKD;
    Tensor v_BGKD;
  };

  virtual ~KvCache() = default;

  // Slots that are filled before the running pass; the mask's query_offset.
  virtual int64_t length() const = 0;
  // Stores the keys and values of the new positions and returns those of all slots so far, the new
  // ones last. Throws InvalidArgument when another batch, head count, head size or dtype is stored
  // than before, when the slots are used up, and while gradients are on: a backward pass that
  // computes the layer anew would store them twice.
  virtual All append(int64_t layer, const Tensor& k_BGTD, const Tensor& v_BGTD) = 0;
};

}  // namespace faultline::nn
