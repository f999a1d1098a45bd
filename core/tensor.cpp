#include "core/tensor.h"

#include <fmt/format.h>

#include <complex>

#include "core/context.h"

namespace faultline {

Tensor::Impl::~Impl() {
  if (block != nullptr && block->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    Allocator::release(block);
  }
}

Tensor Tensor::over(Block* block, DType dtype, const Shape& shape) {
  Tensor result;
  result.impl_ = std::make_shared<Impl>();
  result.impl_->block = block;
  result.impl_->dtype = dtype;
  result.impl_->shape = shape;
  result.impl_->strides = contiguous_strides(shape);
  return result;
}

Tensor::Impl& Tensor::impl() const {
  require(impl_ != nullptr, "tensor: this one is undefined; assign it a value before its use");
  return *impl_;
}

int64_t Tensor::size(int64_t dim) const { return shape()[normalize_dim(dim, rank(), "size")]; }

TensorView Tensor::view() const {
  const Impl& self = impl();
  TensorView result;
  result.data = self.block->data + self.offset * static_cast<int64_t>(size_of(self.dtype));
  result.dtype = self.dtype;
  result.shape = self.shape;
  result.strides = self.strides;
  return result;
}

Tensor Tensor::alias(const Shape& shape, const Strides& strides, int64_t offset) const {
  const Impl& self = impl();
  self.block->references.fetch_add(1, std::memory_order_relaxed);
  Tensor result = over(self.block, self.dtype, shape);
  result.impl_->strides = strides;
  result.impl_->offset = self.offset + offset;
  return result;
}

void Tensor::mark_written(const char* op) const {
  impl().block->version.fetch_add(1, std::memory_order_relaxed);
  impl().block->last_writer = op;
}

bool Tensor::is_exclusive() const {
  return impl_.use_count() == 1 && impl().block->references.load(std::memory_order_acquire) == 1;
}

void Tensor::set_autograd(std::shared_ptr<AutogradMeta> meta) const {
  impl().autograd = std::move(meta);
}

void Tensor::check_direct(DType wanted) const {
  require(dtype() == wanted, "tensor: holds {}, read as {}; use to_vector or cast", name(dtype()),
          name(wanted));
  require(is_contiguous(), "tensor: direct access needs a contiguous tensor; call contiguous()");
  require(&device() == &cpu_device(), "tensor: direct access needs the CPU, this is on {}",
          device().name());
}

namespace {
// Calls `visit(element offset)` for every element in row-major order.
template <class Visit>
void for_each_offset(const Shape& shape, const Strides& strides, Visit&& visit) {
  const int64_t count = numel(shape);
  Dims index = shape;
  std::fill(index.begin(), index.end(), 0);
  int64_t offset = 0;
  for (int64_t n = 0; n < count; ++n) {
    visit(offset);
    for (int d = shape.rank() - 1; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
}
}  // namespace

template <class T>
std::vector<T> Tensor::to_vector() const {
  const TensorView v = view();
  // Through the span that the view covers, so that one copy serves any device.
  const ByteRange range = byte_range(v);
  std::vector<std::byte> host(static_cast<size_t>(range.end - range.begin));
  device().copy_to_host(host.data(), range.begin, host.size());
  std::vector<T> result;
  result.reserve(static_cast<size_t>(numel()));
  with_type(dtype(), [&]<class From>() {
    const auto* origin = reinterpret_cast<const From*>(host.data() + (v.data - range.begin));
    for_each_offset(v.shape, v.strides,
                    [&](int64_t offset) { result.push_back(convert<T>(origin[offset])); });
  });
  return result;
}

template <class T>
T Tensor::item() const {
  require(numel() == 1, "item: expected one element, got {}", *this);
  return to_vector<T>()[0];
}

template <class T>
void Tensor::assign(std::span<const T> values, const char* writer) {
  require(dtype() == dtype_of<T>(), "assign: the tensor holds {}, the values are {}", name(dtype()),
          name(dtype_of<T>()));
  require(static_cast<int64_t>(values.size()) == numel() && is_contiguous(),
          "assign: expected {} contiguous elements for {}, got {}", numel(), *this, values.size());
  mark_written(writer);
  device().copy_from_host(view().data, values.data(), values.size_bytes());
}

template <class T>
Tensor tensor(std::span<const T> values, const Shape& shape, Site site) {
  require(static_cast<int64_t>(values.size()) == numel(shape),
          "tensor: shape {} needs {} elements, got {}", shape, numel(shape), values.size());
  Tensor result = empty(shape, dtype_of<T>(), "tensor", site);
  result.device().copy_from_host(result.view().data, values.data(), values.size_bytes());
  return result;
}

#define FAULTLINE_ELEMENT(T)                                        \
  template T Tensor::item<T>() const;                               \
  template void Tensor::assign<T>(std::span<const T>, const char*); \
  template Tensor tensor<T>(std::span<const T>, const Shape&, Site);
#define FAULTLINE_VECTOR(T) template std::vector<T> Tensor::to_vector<T>() const;
FAULTLINE_ELEMENT(float)
FAULTLINE_ELEMENT(double)
FAULTLINE_ELEMENT(float16)
FAULTLINE_ELEMENT(bfloat16)
FAULTLINE_ELEMENT(int32_t)
FAULTLINE_ELEMENT(int64_t)
FAULTLINE_ELEMENT(uint8_t)
FAULTLINE_ELEMENT(bool)
FAULTLINE_ELEMENT(std::complex<double>)
FAULTLINE_VECTOR(float)
FAULTLINE_VECTOR(double)
FAULTLINE_VECTOR(float16)
FAULTLINE_VECTOR(bfloat16)
FAULTLINE_VECTOR(int32_t)
FAULTLINE_VECTOR(int64_t)
FAULTLINE_VECTOR(uint8_t)
FAULTLINE_VECTOR(bool)
FAULTLINE_VECTOR(std::complex<double>)
#undef FAULTLINE_ELEMENT
#undef FAULTLINE_VECTOR

Tensor empty(const Shape& shape, DType dtype, const char* op, Site site) {
  Context& context = Context::current();
  const int64_t count = numel(shape);
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(count, static_cast<int64_t>(size_of(dtype)), &bytes),
          "{}: {} elements of {} are more than 2^63 bytes", op, count, name(dtype));
  const AllocationTag tag{op, context.module, context.step, site};
  Block* block = context.allocator->allocate(static_cast<size_t>(bytes), context.stream, tag);
  return Tensor::over(block, dtype, shape);
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{}{}", name(tensor.dtype()), to_string(tensor.shape()));
}

}  // namespace faultline

auto fmt::formatter<faultline::Tensor>::format(const faultline::Tensor& tensor,
                                               fmt::format_context& context) const
    -> fmt::format_context::iterator {
  return fmt::formatter<std::string_view>::format(faultline::describe(tensor), context);
}
