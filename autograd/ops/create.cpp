#include "autograd/functional.h"
#include "core/context.h"
#include "core/device.h"
#include "kernels/kernels.h"

// Tensors from nothing, and the few writes in place. All of them are launches outside the tape.
namespace faultline {
namespace {

void run(const KernelRecord& kernel, const Tensor& output, const Attributes& attributes,
         const Tensor& input, Site site) {
  const Context& context = Context::current();
  Launch work;
  work.kernel = &kernel;
  work.args.attributes = attributes;
  work.args.threads = context.threads;
  if (input.defined()) {
    work.args.inputs[0] = input.view();
    work.args.input_count = 1;
  }
  work.args.outputs[0] = output.view();
  work.args.output_count = 1;
  work.label = {kernel.name, context.module, context.phase, "its only kernel", site};
  launch(Stream{&output.device(), context.stream.id}, work);
}

bool repeats_elements(const Tensor& x) {
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] > 1 && x.strides()[d] == 0) return true;
  }
  return false;
}

void prepare_write(const Tensor& x, const char* op) {
  require(!repeats_elements(x),
          "{}: several indices of {} share one element (it was expanded); write to a clone() of it",
          op, x);
  require(!Context::current().gradients || !requires_grad(x),
          "{}: {} requires a gradient and cannot be written in place; use NoGrad, or an op that "
          "gives a new tensor",
          op, x);
  x.mark_written(op);
}

void require_one_device(const Tensor& x, const Tensor& from, const char* op) {
  require(&from.device() == &x.device(), "{}: {} is on {} and {} on {}; move them to one device",
          op, x, x.device().name(), from, from.device().name());
}

// `from`, in memory of its own where a write to `x` would change elements that are still to be
// read.
Tensor apart(const Tensor& from, const Tensor& x) {
  if (!from.same_storage(x)) return from;
  const TensorView a = from.view();
  const TensorView b = x.view();
  const ByteRange read = byte_range(a);
  const ByteRange written = byte_range(b);
  const bool meet = read.begin < written.end && written.begin < read.end;
  const bool same = a.data == b.data && a.strides == b.strides && a.dtype == b.dtype;
  return meet && !same ? clone(from) : from;
}

}  // namespace

Tensor full(const Shape& shape, double value, DType dtype, Site site) {
  Tensor result = empty(shape, dtype, "full", site);
  run(kernels::fill, result, FillAttributes{value}, {}, site);
  return result;
}

Tensor zeros(const Shape& shape, DType dtype, Site site) { return full(shape, 0, dtype, site); }
Tensor ones(const Shape& shape, DType dtype, Site site) { return full(shape, 1, dtype, site); }

Tensor arange(int64_t count, double start, double step, DType dtype, Site site) {
  require(count >= 0, "arange: the count must not be negative, got {}", count);
  Tensor result = empty({count}, dtype, "arange", site);
  run(kernels::arange, result, ArangeAttributes{start, step}, {}, site);
  return result;
}

Tensor normal(const Shape& shape, double mean, double deviation, uint64_t seed, uint64_t stream,
              DType dtype, Site site) {
  Tensor result = empty(shape, dtype, "normal", site);
  run(kernels::random_normal, result, RandomAttributes{seed, stream, mean, deviation}, {}, site);
  return result;
}

Tensor uniform(const Shape& shape, double low, double high, uint64_t seed, uint64_t stream,
               DType dtype, Site site) {
  Tensor result = empty(shape, dtype, "uniform", site);
  run(kernels::random_uniform, result, RandomAttributes{seed, stream, low, high - low}, {}, site);
  return result;
}

Tensor clone(const Tensor& x, Site site) {
  Tensor result = empty(x.shape(), x.dtype(), "clone", site);
  run(kernels::copy, result, {}, x, site);
  return result;
}

void fill_(const Tensor& x, double value) {
  prepare_write(x, "fill_");
  run(kernels::fill, x, FillAttributes{value}, {}, Site::here());
}

void copy_(const Tensor& x, const Tensor& from) {
  require(x.shape() == from.shape(), "copy_: {} cannot take {}", x, from);
  require_one_device(x, from, "copy_");
  const Tensor source = apart(from, x);
  prepare_write(x, "copy_");
  run(kernels::copy, x, {}, source, Site::here());
}

void accumulate_(const Tensor& x, const Tensor& y) {
  require(x.shape() == y.shape() && x.dtype() == y.dtype(), "accumulate_: {} cannot take {}", x, y);
  require(x.is_contiguous(), "accumulate_: {} must be contiguous", x);
  require_one_device(x, y, "accumulate_");
  const Tensor addend = y.is_contiguous() ? apart(y, x) : clone(y);
  prepare_write(x, "accumulate_");
  run(kernels::accumulate, x, {}, addend, Site::here());
}

}  // namespace faultline
