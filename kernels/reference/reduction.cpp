// Reductions: sum and mean and amax over a set of dimensions, argmax over one.

#include <type_traits>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
// The input's layout cut in two: the dimensions that stay, and those that are reduced. Both have
// the input's rank, with size 1 for what belongs to the other.
struct ReducedLayout {
  Shape kept;
  Shape reduced;

  ReducedLayout(const Shape& shape, uint32_t dims) : kept(shape), reduced(shape) {
    for (int d = 0; d < shape.rank(); ++d) ((dims >> d & 1) != 0 ? kept : reduced)[d] = 1;
  }
};

// Calls visit(number of the output element, offset of its first input) for every output element.
template <class Visit>
void for_each_result(const TensorView& in, const ReducedLayout& layout, Visit&& visit) {
  int64_t n = 0;
  for_each_offset<1>(layout.kept, {in.strides}, [&](const auto& at) { visit(n++, at[0]); });
}

// output = finish(combine(...combine(combine(start, x0), x1)..., xn)), in row-major order.
template <class T, class Combine, class Finish>
void fold(const KernelArgs& args, uint32_t dims, T start, Combine combine, Finish finish) {
  const TensorView& in = args.inputs[0];
  const TensorView& out = args.outputs[0];
  const ReducedLayout layout(in.shape, dims);
  const Reader<T> x(in);
  const Writer<T> y(out);
  for_each_result(in, layout, [&](int64_t n, int64_t first) {
    T value = start;
    for_each_offset<1>(layout.reduced, {in.strides},
                       [&](const auto& at) { value = combine(value, x[first + at[0]]); });
    y.put(offset_of(out, n), finish(value));
  });
}

template <class T>
T plus(T x, T y) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
  } else {
    return x + y;
  }
}

int64_t reduced_count(const KernelArgs& args, uint32_t dims) {
  int64_t count = 1;
  const Shape& shape = args.inputs[0].shape;
  for (int d = 0; d < shape.rank(); ++d) {
    if ((dims >> d & 1) != 0) count *= shape[d];
  }
  return count;
}

// Whether y takes the place of x as the greatest so far: a NaN does and keeps it.
template <class T>
bool replaces(T y, T x) {
  return x == x && (y != y || real_of(y) > real_of(x));
}
}  // namespace

void sum(const KernelArgs& args) {
  const uint32_t dims = args.attributes.as<ReduceAttributes>().dims;
  with_scalar(
      args, [&]<class T>() { fold<T>(args, dims, T(0), plus<T>, [](T total) { return total; }); });
}

// Over no element: 0 / 0.
void mean(const KernelArgs& args) {
  const uint32_t dims = args.attributes.as<ReduceAttributes>().dims;
  const auto count = static_cast<double>(reduced_count(args, dims));
  with_real_scalar(args, [&]<class T>() {
    fold<T>(args, dims, T(0), plus<T>, [&](T total) { return total / count; });
  });
}

void amax(const KernelArgs& args) {
  const uint32_t dims = args.attributes.as<ReduceAttributes>().dims;
  require(reduced_count(args, dims) > 0 || args.outputs[0].numel() == 0,
          "amax: shape {} has no element along the reduced dimensions, so there is no greatest",
          to_string(args.inputs[0].shape));
  const TensorView& in = args.inputs[0];
  const TensorView& out = args.outputs[0];
  const ReducedLayout layout(in.shape, dims);
  with_scalar(args, [&]<class T>() {
    const Reader<T> x(in);
    const Writer<T> y(out);
    for_each_result(in, layout, [&](int64_t n, int64_t first) {
      T greatest = x[first];
      for_each_offset<1>(layout.reduced, {in.strides}, [&](const auto& at) {
        const T candidate = x[first + at[0]];
        if (replaces(candidate, greatest)) greatest = candidate;
      });
      y.put(offset_of(out, n), greatest);
    });
  });
}

// The first index of the greatest element; the first NaN if there is one.
void argmax(const KernelArgs& args) {
  const TensorView& in = args.inputs[0];
  const TensorView& out = args.outputs[0];
  const auto dim = static_cast<int>(args.attributes.as<DimAttributes>().dim);
  require(in.shape[dim] > 0 || out.numel() == 0,
          "argmax: shape {} has no element along dimension {}, so there is no greatest",
          to_string(in.shape), dim);
  const ReducedLayout layout(in.shape, 1U << dim);
  with_scalar(args, [&]<class T>() {
    const Reader<T> x(in);
    const Writer<int64_t> y(out);
    for_each_result(in, layout, [&](int64_t n, int64_t first) {
      int64_t best = 0;
      for (int64_t i = 1; i < in.shape[dim]; ++i) {
        const T candidate = x[first + i * in.strides[dim]];
        if (replaces(candidate, x[first + best * in.strides[dim]])) best = i;
      }
      y.put(offset_of(out, n), best);
    });
  });
}

}  // namespace faultline::reference
