#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/launch.h"

namespace faultline {

// Defined in autograd/tape.h; core only keeps it alive.
struct AutogradMeta;

// A handle to an n-dimensional array: shape, strides and offset over a shared block. Copying the
// handle copies no data. All arithmetic is in autograd/functional.h.
class Tensor {
 public:
  Tensor() = default;  // undefined

  // A tensor over `block`, whose one reference it takes over.
  static Tensor over(Block* block, DType dtype, const Shape& shape);

  bool defined() const { return impl_ != nullptr; }
  // The following need a defined tensor and throw InvalidArgument otherwise.
  DType dtype() const { return impl().dtype; }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  int rank() const { return impl().shape.rank(); }
  int64_t size(int64_t dim) const;
  int64_t numel() const { return faultline::numel(impl().shape); }
  bool is_contiguous() const { return view().is_contiguous(); }
  DeviceRuntime& device() const { return *impl().block->device; }

  // What a kernel sees.
  TensorView view() const;

  // Another handle to the same elements with another layout; `offset` in elements from this
  // tensor's first. No gradient history. The caller answers for staying inside the block.
  Tensor alias(const Shape& shape, const Strides& strides, int64_t offset = 0) const;
  // Another handle without gradient history.
  Tensor detach() const { return alias(shape(), strides()); }

  // Host copy of all elements in row-major order, converted to T. Synchronises.
  template <class T>
  std::vector<T> to_vector() const;
  // The only element, converted to T. Throws InvalidArgument unless there is exactly one.
  // Synchronises.
  template <class T>
  T item() const;
  // Writes all elements in row-major order; the tensor must be contiguous and hold T. Counts as an
  // in-place write by `writer`.
  template <class T>
  void assign(std::span<const T> values, const char* writer = "assign");

  // Direct access on the CPU for io/ and tests: contiguous, of type T, else InvalidArgument.
  template <class T>
  std::span<const T> data() const {
    check_direct(dtype_of<T>());
    return {reinterpret_cast<const T*>(view().data), static_cast<size_t>(numel())};
  }
  // The same for writing; counts as an in-place write.
  template <class T>
  std::span<T> mutable_data(const char* writer = "mutable_data") {
    check_direct(dtype_of<T>());
    mark_written(writer);
    return {reinterpret_cast<T*>(view().data), static_cast<size_t>(numel())};
  }

  // How often the block was written in place, and the op that wrote last ("" for none).
  uint32_t version() const { return impl().block->version.load(std::memory_order_relaxed); }
  const char* last_writer() const { return impl().block->last_writer; }
  // Counts a write by `op`, a name that lives as long as the process.
  void mark_written(const char* op) const;
  const Block& block() const { return *impl().block; }
  // Whether nobody else can see the elements: one handle, one reference to the block.
  bool is_exclusive() const;
  // Whether both are over one block; whether both are copies of one handle.
  bool same_storage(const Tensor& other) const { return impl().block == other.impl().block; }
  bool same_handle(const Tensor& other) const { return impl_ == other.impl_; }

  // The gradient side, null for a tensor that has none; for autograd/ and tools.
  const std::shared_ptr<AutogradMeta>& autograd() const { return impl().autograd; }
  void set_autograd(std::shared_ptr<AutogradMeta> meta) const;

 private:
  struct Impl {
    Block* block = nullptr;
    DType dtype = DType::f32;
    Shape shape;
    Strides strides;
    int64_t offset = 0;  // elements
    std::shared_ptr<AutogradMeta> autograd;

    Impl() = default;
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl();
  };

  Impl& impl() const;
  void check_direct(DType wanted) const;

  std::shared_ptr<Impl> impl_;
};

// Uninitialised memory from the current Context's allocator.
Tensor empty(const Shape& shape, DType dtype = DType::f32, const char* op = "empty",
             Site site = Site::here());

// A tensor with these elements in row-major order. Throws InvalidArgument when the count differs
// from the shape.
template <class T>
Tensor tensor(std::span<const T> values, const Shape& shape, Site site = Site::here());
template <class T>
Tensor tensor(std::initializer_list<T> values, const Shape& shape, Site site = Site::here()) {
  return tensor(std::span<const T>(values.begin(), values.size()), shape, site);
}
template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape, Site site = Site::here()) {
  return tensor(std::span<const T>(values), shape, site);
}
// A one-dimensional tensor.
template <class T>
Tensor tensor(std::initializer_list<T> values, Site site = Site::here()) {
  return tensor(std::span<const T>(values.begin(), values.size()),
                {static_cast<int64_t>(values.size())}, site);
}

// "f32[2, 3]", or "undefined". Inside require() and fail() write the tensor itself: it is formatted
// only on an error.
std::string describe(const Tensor& tensor);

}  // namespace faultline

template <>
struct fmt::formatter<faultline::Tensor> : fmt::formatter<std::string_view> {
  auto format(const faultline::Tensor& tensor, fmt::format_context& context) const
      -> fmt::format_context::iterator;
};
