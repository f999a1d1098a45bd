#include "nn/left_padding.h"

#include <algorithm>

namespace faultline::nn {

LeftPadding::LeftPadding(const std::vector<int64_t>& lengths) {
  require(!lengths.empty(), "left padding: the batch has no sequence");
  slots_ = *std::max_element(lengths.begin(), lengths.end());
  for (const int64_t length : lengths) {
    require(length >= 1, "left padding: sequence {} is empty; give it at least one token",
            pads_.size());
    pads_.push_back(slots_ - length);
    none_ = none_ && length == slots_;
  }
}

Tensor LeftPadding::positions(int64_t first, int64_t count) const {
  if (none_) return {};
  std::vector<int32_t> values;
  for (const int64_t pad : pads_) {
    for (int64_t slot = first; slot < first + count; ++slot) {
      values.push_back(static_cast<int32_t>(std::max<int64_t>(0, slot - pad)));
    }
  }
  return tensor(values, {static_cast<int64_t>(pads_.size()), count});
}

Tensor LeftPadding::key_valid(int64_t slots) const {
  if (none_) return {};
  std::vector<uint8_t> values;
  for (const int64_t pad : pads_) {
    for (int64_t slot = 0; slot < slots; ++slot) values.push_back(slot >= pad ? 1 : 0);
  }
  Tensor result = empty({static_cast<int64_t>(pads_.size()), slots}, DType::boolean, "key_valid");
  result.device().copy_from_host(result.view().data, values.data(), values.size());
  return result;
}

}  // namespace faultline::nn
