#include "io/file_bytes.h"

#include <cstring>

namespace faultline {
namespace {

// Copies the elements of dimension `dim` and those below it to `to`, row-major.
std::byte* gather(const std::byte* from, const TensorView& view, int dim, std::byte* to) {
  const size_t size = size_of(view.dtype);
  if (dim == view.shape.rank()) {
    std::memcpy(to, from, size);
    return to + size;
  }
  for (int64_t i = 0; i < view.shape[dim]; ++i) {
    to = gather(from + i * view.strides[dim] * static_cast<int64_t>(size), view, dim + 1, to);
  }
  return to;
}

}  // namespace

FileBytes::FileBytes(const Tensor& tensor) : tensor_(tensor) {
  const TensorView view = tensor.view();
  const size_t bytes = static_cast<size_t>(view.numel()) * size_of(view.dtype);
  if (bytes == 0) return;
  if (view.is_contiguous() && &tensor.device() == &cpu_device()) {
    bytes_ = {view.data, bytes};
    return;
  }
  // Through the span that the view covers, so that one copy serves any device.
  const ByteRange range = byte_range(view);
  std::vector<std::byte> host(static_cast<size_t>(range.end - range.begin));
  tensor.device().copy_to_host(host.data(), range.begin, host.size());
  copy_.resize(bytes);
  gather(host.data() + (view.data - range.begin), view, 0, copy_.data());
  bytes_ = copy_;
}

}  // namespace faultline
