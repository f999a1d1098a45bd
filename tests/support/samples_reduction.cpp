#include <algorithm>
#include <limits>

#include "autograd/op.h"
#include "tests/support/op_samples.h"

// Reductions and matrix products.
namespace faultline::test {
namespace {

// Folds x over `dims`; reduced dimensions stay with size 1.
Dense fold(const Dense& x, const std::vector<int64_t>& dims, double start,
           double (*step)(double, double)) {
  Shape shape = x.shape;
  for (const int64_t d : dims) shape[static_cast<int>(d)] = 1;
  Dense result{shape, std::vector<double>(static_cast<size_t>(numel(shape)), start)};
  const Strides strides = contiguous_strides(shape);
  generate(x.shape, [&](const Dims& index) {
    int64_t place = 0;
    for (int d = 0; d < shape.rank(); ++d) place += shape[d] == 1 ? 0 : index[d] * strides[d];
    double& slot = result.values[static_cast<size_t>(place)];
    slot = step(slot, x.at(index));
    return 0.0;
  });
  return result;
}

double plus(double a, double b) { return a + b; }
double larger(double a, double b) { return std::max(a, b); }

Dense without_ones(Dense x, const std::vector<int64_t>& dims) {
  Shape shape;
  for (int d = 0; d < x.shape.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) shape.push_back(x.shape[d]);
  }
  return {shape, std::move(x.values)};
}

void add_folds(std::vector<OpSample>& samples, const Shape& shape, const std::vector<int64_t>& dims,
               KeepDim keep) {
  const std::string what =
      fmt::format("{} over {}{}", to_string(shape), to_string(Dims(std::span<const int64_t>(dims))),
                  keep == KeepDim::yes ? ", kept" : "");
  const auto finish = [dims, keep](Dense x) {
    return keep == KeepDim::yes ? x : without_ones(std::move(x), dims);
  };
  double count = 1;
  for (const int64_t d : dims) count *= static_cast<double>(shape[static_cast<int>(d)]);
  samples.push_back({.op = "sum",
                     .what = what,
                     .inputs = {real(shape)},
                     .run = [dims, keep](std::span<const Tensor> in) -> Tensors {
                       return {sum(in[0], dims, keep)};
                     },
                     .oracle = [dims, finish](std::span<const Dense> in) -> std::vector<Dense> {
                       return {finish(fold(in[0], dims, 0, plus))};
                     }});
  if (count == 0) return;
  samples.push_back(
      {.op = "mean",
       .what = what,
       .inputs = {real(shape)},
       .run = [dims, keep](std::span<const Tensor> in) -> Tensors {
         return {mean(in[0], dims, keep)};
       },
       .oracle = [dims, finish, count](std::span<const Dense> in) -> std::vector<Dense> {
         Dense result = fold(in[0], dims, 0, plus);
         for (double& value : result.values) value /= count;
         return {finish(std::move(result))};
       }});
  samples.push_back(
      {.op = "amax",
       .what = what,
       .inputs = {real(shape)},
       .run = [dims, keep](std::span<const Tensor> in) -> Tensors {
         return {amax(in[0], dims, keep)};
       },
       .oracle = [dims, finish](std::span<const Dense> in) -> std::vector<Dense> {
         return {finish(fold(in[0], dims, -std::numeric_limits<double>::infinity(), larger))};
       }});
}

void add_argmax(std::vector<OpSample>& samples) {
  for (const int dim : {0, 1}) {
    // Few different values, so that the largest is often there more than once.
    samples.push_back({.op = "argmax",
                       .what = fmt::format("[4, 7, 3] along {}, with ties", dim),
                       .inputs = {ids({4, 7, 3}, 3)},
                       .run = [dim](std::span<const Tensor> in) -> Tensors {
                         return {argmax(cast(in[0], DType::f32), dim)};
                       },
                       .oracle = [dim](std::span<const Dense> in) -> std::vector<Dense> {
                         return {generate(in[0].shape.without(dim), [&](const Dims& i) {
                           Dims at = dim == 0 ? Dims{0, i[0], i[1]} : Dims{i[0], 0, i[1]};
                           Dims best = at;
                           for (; at[dim] < in[0].shape[dim]; ++at[dim]) {
                             if (in[0].at(at) > in[0].at(best)) best = at;
                           }
                           return static_cast<double>(best[dim]);
                         })};
                       },
                       .floats_only = false});
  }
}

Shape product_shape(const Shape& a, const Shape& b) {
  const auto leading = [](const Shape& s) {
    return Shape(std::span(s.begin(), static_cast<size_t>(s.rank() - 2)));
  };
  Shape shape = broadcast(leading(a), leading(b), "oracle");
  shape.push_back(a[-2]);
  shape.push_back(b[-1]);
  return shape;
}

void add_products(std::vector<OpSample>& samples) {
  const std::pair<Shape, Shape> kMatrices[] = {
      {{5, 7}, {7, 3}}, {{2, 3, 5}, {2, 5, 4}}, {{3, 1, 2, 5}, {4, 5, 3}}, {{1, 1}, {1, 1}},
      {{3, 0}, {0, 2}}, {{0, 3}, {3, 2}},       {{17, 33}, {33, 19}},      {{2, 4, 3}, {3, 1}},
  };
  for (const auto& [a, b] : kMatrices) {
    samples.push_back(
        {.op = "matmul",
         .what = to_string(a) + " times " + to_string(b),
         .inputs = {real(a), real(b)},
         .run = [](std::span<const Tensor> in) -> Tensors { return {matmul(in[0], in[1])}; },
         .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
           return {generate(product_shape(in[0].shape, in[1].shape), [&](const Dims& i) {
             double sum = 0;
             for (int64_t k = 0; k < in[0].shape[-1]; ++k) {
               Dims left = i;
               Dims right = i;
               left[-1] = right[-2] = k;
               sum += in[0].at(left) * in[1].at(right);
             }
             return sum;
           })};
         }});
  }
  for (const Shape& x : {Shape{5, 7}, Shape{2, 3, 7}, Shape{7}, Shape{0, 7}}) {
    for (const bool biased : {true, false}) {
      std::vector<Input> inputs{real(x), real({3, 7})};
      if (biased) inputs.push_back(real({3}));
      Shape shape = x;
      shape[-1] = 3;
      samples.push_back({.op = "linear",
                         .what = to_string(x) + (biased ? " with bias" : " without bias"),
                         .inputs = inputs,
                         .run = [](std::span<const Tensor> in) -> Tensors {
                           return {linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
                         },
                         .oracle = [shape](std::span<const Dense> in) -> std::vector<Dense> {
                           return {generate(shape, [&](Dims i) {
                             const int64_t o = i[-1];
                             double sum = in.size() > 2 ? in[2].at({o}) : 0;
                             for (i[-1] = 0; i[-1] < 7; ++i[-1])
                               sum += in[0].at(i) * in[1].at({o, i[-1]});
                             return sum;
                           })};
                         }});
    }
  }
}

}  // namespace

void add_reduction_samples(std::vector<OpSample>& samples) {
  add_folds(samples, {3, 5, 4}, {1}, KeepDim::no);
  add_folds(samples, {3, 5, 4}, {0, 2}, KeepDim::yes);
  add_folds(samples, {3, 5, 4}, {0, 1, 2}, KeepDim::no);
  add_folds(samples, {67}, {0}, KeepDim::yes);
  add_folds(samples, {2, 130}, {1}, KeepDim::no);
  add_folds(samples, {4, 1}, {1}, KeepDim::no);
  add_folds(samples, {0, 3}, {0}, KeepDim::no);
  add_folds(samples, {0, 3}, {1}, KeepDim::no);
  add_argmax(samples);
  add_products(samples);
}

}  // namespace faultline::test
