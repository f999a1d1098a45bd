#include <algorithm>

#include "autograd/op.h"
#include "kernels/attributes.h"
#include "tests/support/op_samples.h"

// Ops that move elements, or only look at them in another order.
namespace faultline::test {
namespace {

void add(std::vector<OpSample>& samples, const char* op, std::string what,
         std::vector<Input> inputs, const std::function<Tensor(std::span<const Tensor>)>& run,
         const std::function<Dense(std::span<const Dense>)>& oracle) {
  samples.push_back({.op = op,
                     .what = std::move(what),
                     .inputs = std::move(inputs),
                     .run = [run](std::span<const Tensor> in) -> Tensors { return {run(in)}; },
                     .oracle = [oracle](std::span<const Dense> in) -> std::vector<Dense> {
                       return {oracle(in)};
                     }});
}

// The element of x at the index that `source` makes of an index of the result.
Dense gather(const Dense& x, const Shape& shape, const std::function<Dims(Dims)>& source) {
  return generate(shape, [&](const Dims& index) { return x.at(source(index)); });
}

Dense with_dims_swapped(const Dense& x, int a, int b) {
  Shape shape = x.shape;
  std::swap(shape[a], shape[b]);
  return gather(x, shape, [=](Dims i) {
    std::swap(i[a], i[b]);
    return i;
  });
}

void add_views(std::vector<OpSample>& samples) {
  for (const auto& [from, to] : {std::pair<Shape, Shape>{{6, 5}, {2, 3, 5}},
                                 {{2, 3, 5}, {30}},
                                 {{7}, {1, 7, 1}},
                                 {{3, 0}, {0, 5}}}) {
    // contiguous() first: not every layout can be seen in every shape.
    add(
        samples, "view", to_string(from) + " as " + to_string(to), {real(from)},
        [to = to](auto in) { return view(contiguous(in[0]), to); },
        [to = to](auto in) {
          return Dense{to, in[0].values};
        });
  }
  add(
      samples, "permute", "[2, 3, 5] by (2, 0, 1)", {real({2, 3, 5})},
      [](auto in) {
        return permute(in[0], {2, 0, 1});
      },
      [](auto in) {
        return gather(in[0], {5, 2, 3}, [](Dims i) { return Dims{i[1], i[2], i[0]}; });
      });
  add(
      samples, "permute", "transpose of [4, 7]", {real({4, 7})},
      [](auto in) { return transpose(in[0], -1, 0); },
      [](auto in) { return with_dims_swapped(in[0], 0, 1); });
  for (const auto& [begin, end] : {std::pair{1, 4}, std::pair{0, 5}, std::pair{2, 2}}) {
    add(
        samples, "slice", fmt::format("[{}, {}) of [3, 5, 2]", begin, end), {real({3, 5, 2})},
        [b = begin, e = end](auto in) { return slice(in[0], 1, b, e); },
        [b = begin, e = end](auto in) {
          return gather(in[0], {3, e - b, 2}, [b](Dims i) {
            i[1] += b;
            return i;
          });
        });
  }
  add(
      samples, "slice", "by negative ends", {real({3, 5})},
      [](auto in) { return slice(in[0], -1, -3, -1); },
      [](auto in) {
        return gather(in[0], {3, 2}, [](Dims i) { return Dims{i[0], i[1] + 2}; });
      });
  add(
      samples, "expand", "[3, 1] to [2, 3, 5]", {real({3, 1})},
      [](auto in) {
        return expand(in[0], {2, 3, 5});
      },
      [](auto in) {
        return gather(in[0], {2, 3, 5}, [](Dims i) { return i; });
      });
  add(
      samples, "expand", "a scalar", {real({})}, [](auto in) { return expand(in[0], {3}); },
      [](auto in) { return gather(in[0], {3}, [](Dims i) { return i; }); });
}

Dense third(const Dense& x, int64_t which) {
  Shape shape = x.shape;
  shape[-1] /= 3;
  return gather(x, shape, [&](Dims i) {
    i[-1] += which * shape[-1];
    return i;
  });
}

void add_split(std::vector<OpSample>& samples) {
  samples.push_back({.op = "split3",
                     .what = "[2, 5, 12]",
                     .inputs = {real({2, 5, 12})},
                     .run = [](std::span<const Tensor> in) -> Tensors {
                       const auto parts = split3(in[0]);
                       return {parts[0], parts[1], parts[2]};
                     },
                     .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
                       return {third(in[0], 0), third(in[0], 1), third(in[0], 2)};
                     }});
  // All three parts in one result, so that all three gradients are needed; and two of them.
  add(
      samples, "split3", "parts that meet again", {real({3, 6})},
      [](auto in) {
        const auto [a, b, c] = split3(in[0]);
        return a * b - c;
      },
      [](auto in) {
        return generate({3, 2}, [&](const Dims& i) {
          return third(in[0], 0).at(i) * third(in[0], 1).at(i) - third(in[0], 2).at(i);
        });
      });
  add(
      samples, "split3", "one part of no use", {real({3, 3})},
      [](auto in) {
        const auto parts = split3(in[0]);
        return parts[2] * parts[0];
      },
      [](auto in) {
        return generate(
            {3, 1}, [&](const Dims& i) { return third(in[0], 0).at(i) * third(in[0], 2).at(i); });
      });
}

void add_copies(std::vector<OpSample>& samples) {
  add(
      samples, "contiguous", "transposed [5, 7, 3]", {real({5, 7, 3})},
      [](auto in) { return contiguous(transpose(in[0], 0, 2)); },
      [](auto in) { return with_dims_swapped(in[0], 0, 2); });
  add(
      samples, "contiguous", "transposed [70, 33]", {real({70, 33})},
      [](auto in) { return contiguous(transpose(in[0], 0, 1)); },
      [](auto in) { return with_dims_swapped(in[0], 0, 1); });
  // There and back: through i64, which truncates, and through a wider or equal float.
  samples.push_back(
      {.op = "cast",
       .what = "to i64",
       .inputs = {real({5, 7}, -9, 9)},
       .run = [](std::span<const Tensor> in) -> Tensors { return {cast(in[0], DType::i64)}; },
       .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
         return {generate(in[0].shape, [&](const Dims& i) { return std::trunc(in[0].at(i)); })};
       },
       .floats_only = false});
  samples.push_back(
      {.op = "cast",
       .what = "i32 to the widest float",
       .inputs = {ids({5, 7}, 100, DType::i32)},
       .run = [](std::span<const Tensor> in) -> Tensors { return {cast(in[0], DType::f64)}; },
       .oracle = [](std::span<const Dense> in) -> std::vector<Dense> { return {in[0]}; }});
}

Dense joined(std::span<const Dense> parts, int dim) {
  Shape shape = parts[0].shape;
  shape[dim] = 0;
  for (const Dense& part : parts) shape[dim] += part.shape[dim];
  return generate(shape, [&](Dims index) {
    size_t part = 0;
    while (index[dim] >= parts[part].shape[dim]) index[dim] -= parts[part++].shape[dim];
    return parts[part].at(index);
  });
}

void add_cat(std::vector<OpSample>& samples) {
  add(
      samples, "cat", "three along 0", {real({2, 3}), real({1, 3}), real({4, 3})},
      [](auto in) { return cat(in, 0); }, [](auto in) { return joined(in, 0); });
  add(
      samples, "cat", "two along the middle, one empty", {real({2, 3, 2}), real({2, 0, 2})},
      [](auto in) { return cat(in, 1); }, [](auto in) { return joined(in, 1); });
  add(
      samples, "cat", "eight along the last", std::vector<Input>(8, real({3, 2})),
      [](auto in) { return cat(in, -1); }, [](auto in) { return joined(in, 1); });
  add(
      samples, "cat", "eleven, more than one op takes", std::vector<Input>(11, real({2})),
      [](auto in) { return cat(in, 0); }, [](auto in) { return joined(in, 0); });
}

void add_selections(std::vector<OpSample>& samples) {
  for (const int dim : {0, 1, 2}) {
    const Shape shape{3, 4, 5};
    Shape picked = shape;
    picked[dim] = 7;
    const auto what = fmt::format("7 of dimension {} of [3, 4, 5]", dim);
    add(
        samples, "index_select", what, {real(shape), ids({7}, shape[dim])},
        [dim](auto in) { return index_select(in[0], dim, in[1]); },
        [dim, picked](auto in) {
          return gather(in[0], picked, [&](Dims i) {
            i[dim] = static_cast<int64_t>(in[1].values[static_cast<size_t>(i[dim])]);
            return i;
          });
        });
    add(
        samples, "index_select_backward", what, {real(picked), ids({7}, shape[dim], DType::i32)},
        [dim, size = shape[dim]](auto in) {
          return apply(Op::index_select_backward, {in[0], in[1]}, DimAttributes{dim, size});
        },
        [dim, shape](auto in) {
          return generate(shape, [&](const Dims& to) {
            double sum = 0;
            for (int64_t k = 0; k < 7; ++k) {
              Dims from = to;
              from[dim] = k;
              if (in[1].values[static_cast<size_t>(k)] == static_cast<double>(to[dim])) {
                sum += in[0].at(from);
              }
            }
            return sum;
          });
        });
    const int64_t begin = shape[dim] - 2;
    Shape part = shape;
    part[dim] = 1;
    add(
        samples, "slice_backward", fmt::format("one of dimension {} of [3, 4, 5]", dim),
        {real(part)},
        [dim, begin, full = shape[dim]](auto in) {
          return apply(Op::slice_backward, {in[0]}, SliceAttributes{dim, begin, 1, full});
        },
        [dim, begin, shape](auto in) {
          return generate(shape, [&](Dims i) {
            if (i[dim] != begin) return 0.0;
            i[dim] = 0;
            return in[0].at(i);
          });
        });
  }
  add(
      samples, "embedding", "ids [2, 5] of [7, 3]", {real({7, 3}), ids({2, 5}, 7)},
      [](auto in) { return embedding(in[0], in[1]); },
      [](auto in) {
        return generate({2, 5, 3}, [&](const Dims& i) {
          const double id = in[1].at({i[0], i[1]});
          return in[0].at({static_cast<int64_t>(id), i[2]});
        });
      });
  add(
      samples, "embedding", "no ids", {real({7, 3}), ids({0}, 7, DType::i32)},
      [](auto in) { return embedding(in[0], in[1]); },
      [](auto) {
        return Dense{{0, 3}, {}};
      });
  add(
      samples, "embedding_backward", "23 rows of [5, 17]",
      {real({23, 17}), ids({23}, 5, DType::i32)},
      [](auto in) {
        return apply(Op::embedding_backward, {in[0], in[1]}, DimAttributes{0, 5});
      },
      [](auto in) {
        return generate({5, 17}, [&](const Dims& i) {
          double sum = 0;
          for (int64_t n = 0; n < 23; ++n) {
            if (in[1].at({n}) == static_cast<double>(i[0])) sum += in[0].at({n, i[1]});
          }
          return sum;
        });
      });
}

}  // namespace

void add_layout_samples(std::vector<OpSample>& samples) {
  add_views(samples);
  add_split(samples);
  add_copies(samples);
  add_cat(samples);
  add_selections(samples);
  // cast between floats has its own gradient; f64 itself would be no cast.
  add(
      samples, "cast", "f64 of whatever it is, and back", {real({3, 5})},
      [](auto in) {
        const DType other = size_of(in[0].dtype()) >= 8 ? DType::c128 : DType::f64;
        return cast(cast(in[0], other), in[0].dtype());
      },
      [](auto in) { return in[0]; });
}

}  // namespace faultline::test
