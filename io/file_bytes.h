#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace faultline {

// The elements of a tensor as a file holds them: row-major, on the host. A view of a tensor that is
// so already, else a copy. Keeps the tensor alive. Synchronises.
class FileBytes {
 public:
  explicit FileBytes(const Tensor& tensor);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Tensor tensor_;
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

}  // namespace faultline
