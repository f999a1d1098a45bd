// Ops that move elements without computing: copies, slices, concatenation and selection by index.
// Those of which this is the only kernel move what they can with copy_elements.

#include "core/rng.h"
#include "core/threads.h"
#include "kernels/attributes.h"
#include "kernels/copy.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
std::vector<int64_t> checked_indices(const TensorView& view, int64_t limit, const char* op) {
  std::vector<int64_t> indices = read_all<int64_t>(view);
  for (size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] >= 0 && indices[i] < limit,
            "{}: index {} at position {} is outside of [0, {})", op, indices[i], i, limit);
  }
  return indices;
}
}  // namespace

void contiguous(const KernelArgs& args) { cast(args); }

// The three scalars hold every element exactly, so that the store is the only rounding.
void cast(const KernelArgs& args) {
  with_scalar(args, [&]<class T>() { map<T, 1>(args, [](T x) { return x; }); });
}

// dx = 0, and dy where the slice was taken.
void slice_backward(const KernelArgs& args) {
  const auto slice = args.attributes.as<SliceAttributes>();
  const auto dim = static_cast<int>(slice.dim);
  const TensorView& dy = args.inputs[0];
  const TensorView& dx = args.outputs[0];
  const int64_t end = slice.begin + dy.shape[dim];
  zero_elements(slice_of(dx, dim, 0, slice.begin), args.threads);
  zero_elements(slice_of(dx, dim, end, dx.shape[dim] - end), args.threads);
  copy_elements(dy, slice_of(dx, dim, slice.begin, dy.shape[dim]), args.threads);
}

// The inputs behind each other along one dimension.
void cat(const KernelArgs& args) {
  const auto dim = static_cast<int>(args.attributes.as<DimAttributes>().dim);
  int64_t begin = 0;
  for (int i = 0; i < args.input_count; ++i) {
    const TensorView& in = args.inputs[i];
    if (!in.defined()) continue;
    copy_elements(in, slice_of(args.outputs[0], dim, begin, in.shape[dim]), args.threads);
    begin += in.shape[dim];
  }
}

// Inputs x, ids [n]; y's index i along the dimension is x's index ids[i].
void index_select(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  const auto dim = static_cast<int>(args.attributes.as<DimAttributes>().dim);
  const auto ids = checked_indices(args.inputs[1], x.shape[dim], "index_select");
  for (size_t i = 0; i < ids.size(); ++i) {
    copy_elements(slice_of(x, dim, ids[i], 1), slice_of(y, dim, static_cast<int64_t>(i), 1),
                  args.threads);
  }
}

// Inputs dy, ids [n]; dx's index j is the sum of dy's indices i with ids[i] == j.
void index_select_backward(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& dx = args.outputs[0];
  const auto dim = static_cast<int>(args.attributes.as<DimAttributes>().dim);
  const auto ids = checked_indices(args.inputs[1], dx.shape[dim], "index_select_backward");
  with_scalar(args, [&]<class T>() {
    std::vector<T> sums(static_cast<size_t>(dx.numel()), T(0));
    const Strides strides = contiguous_strides(dx.shape);
    Shape slice = dy.shape;
    slice[dim] = 1;
    const Reader<T> gradient(dy);
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t from = static_cast<int64_t>(i) * dy.strides[dim];
      const int64_t to = ids[i] * strides[dim];
      for_each_offset<2>(slice, {dy.strides, strides}, [&](const auto& at) {
        sums[static_cast<size_t>(to + at[1])] += gradient[from + at[0]];
      });
    }
    write_all(dx, sums);
  });
}

// Inputs weight [V, C], ids; y[..., :] = weight[ids[...], :].
void embedding(const KernelArgs& args) {
  const auto ids = checked_indices(args.inputs[1], args.inputs[0].shape[0], "embedding");
  with_scalar(args, [&]<class T>() {
    const Rows<T> weight(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    for (size_t i = 0; i < ids.size(); ++i) y.write(static_cast<int64_t>(i), weight.read(ids[i]));
  });
}

// Inputs dy, ids; dweight[v, :] = the sum of dy[i, :] over ids[i] == v, in the order of i.
void embedding_backward(const KernelArgs& args) {
  const TensorView& dweight = args.outputs[0];
  const auto ids = checked_indices(args.inputs[1], dweight.shape[0], "embedding_backward");
  with_scalar(args, [&]<class T>() {
    const Rows<T> dy(args.inputs[0]);
    std::vector<T> sums(static_cast<size_t>(dweight.numel()), T(0));
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<T> row = dy.read(static_cast<int64_t>(i));
      T* sum = sums.data() + ids[i] * dweight.shape[1];
      for (size_t c = 0; c < row.size(); ++c) sum[c] += row[c];
    }
    write_all(dweight, sums);
  });
}

// Inputs x, key i64 [3] = (seed, step, first sequence). Kept elements are divided by 1 - p
// (Srivastava et al., "Dropout", JMLR 15, 2014, scaled in training); the rest is 0.
void dropout(const KernelArgs& args) {
  const auto drop = args.attributes.as<DropoutAttributes>();
  const TensorView& x = args.inputs[0];
  const auto key = read_all<int64_t>(args.inputs[1]);
  const auto seed = static_cast<uint64_t>(key[0]);
  const int64_t sequences = x.shape.rank() == 0 ? 1 : x.shape[0];
  const int64_t length = sequences == 0 ? 0 : x.numel() / sequences;
  with_scalar(args, [&]<class T>() {
    std::vector<T> values = read_all<T>(x);
    for (int64_t b = 0; b < sequences; ++b) {
      for (int64_t i = 0; i < length; ++i) {
        const auto random =
            philox({static_cast<uint32_t>(i), static_cast<uint32_t>(key[2] + b), drop.layer,
                    static_cast<uint32_t>(key[1])},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
        T& value = values[static_cast<size_t>(b * length + i)];
        value = random[0] * 0x1p-32 >= drop.p ? value / T(1 - drop.p) : T(0);
      }
    }
    write_all(args.outputs[0], values);
  });
}

}  // namespace faultline::reference
