#include <cmath>

#include "autograd/op.h"
#include "tests/support/op_samples.h"

// Elementwise functions of several tensors, with broadcasting.
namespace faultline::test {
namespace {

using Formula = double (*)(double a, double b);

struct Row {
  Op op;
  Formula formula;
  bool floats;   // else bool results
  bool divides;  // keeps the second input away from 0
  bool ties;     // small whole numbers, so that equal elements meet
};

constexpr Row kRows[] = {
    {Op::add, [](double a, double b) { return a + b; }, true, false, false},
    {Op::sub, [](double a, double b) { return a - b; }, true, false, false},
    {Op::mul, [](double a, double b) { return a * b; }, true, false, false},
    {Op::div, [](double a, double b) { return a / b; }, true, true, false},
    {Op::maximum, [](double a, double b) { return std::fmax(a, b); }, true, false, false},
    {Op::minimum, [](double a, double b) { return std::fmin(a, b); }, true, false, false},
    {Op::equal, [](double a, double b) { return a == b ? 1.0 : 0.0; }, false, false, true},
    {Op::less, [](double a, double b) { return a < b ? 1.0 : 0.0; }, false, false, true},
    {Op::less_equal, [](double a, double b) { return a <= b ? 1.0 : 0.0; }, false, false, true},
};

Dense combine(const Dense& a, const Dense& b, Formula f) {
  return generate(broadcast(a.shape, b.shape, "oracle"),
                  [&](const Dims& i) { return f(a.at(i), b.at(i)); });
}

OpSample binary_sample(const Row& row, const Shape& a, const Shape& b) {
  OpSample sample{.op = definition(row.op).name,
                  .what = to_string(a) + " and " + to_string(b),
                  .inputs = {real(a), row.divides ? nonzero(b) : real(b)},
                  .run = [op = row.op](std::span<const Tensor> in) -> Tensors {
                    return {apply(op, {in[0], in[1]})};
                  },
                  .oracle = [f = row.formula](std::span<const Dense> in) -> std::vector<Dense> {
                    return {combine(in[0], in[1], f)};
                  },
                  .floats_only = row.floats};
  if (row.ties) sample.inputs = {ids(a, 3), ids(b, 3)};
  return sample;
}

// One value for every element, from all inputs.
OpSample pointwise(const char* op, std::string what, std::vector<Input> inputs, Run run,
                   const std::function<double(std::span<const double>)>& f) {
  return {.op = op,
          .what = std::move(what),
          .inputs = std::move(inputs),
          .run = std::move(run),
          .oracle = [f](std::span<const Dense> in) -> std::vector<Dense> {
            Shape shape;
            for (const Dense& x : in) shape = broadcast(shape, x.shape, "oracle");
            return {generate(shape, [&](const Dims& i) {
              std::vector<double> values;
              for (const Dense& x : in) values.push_back(x.at(i));
              return f(values);
            })};
          }};
}

void add_where(std::vector<OpSample>& samples) {
  const auto run = [](std::span<const Tensor> in) -> Tensors {
    return {where(in[0], in[1], in[2])};
  };
  const auto choose = [](std::span<const double> v) { return v[0] != 0 ? v[1] : v[2]; };
  samples.push_back(pointwise("where", "[5, 7] everywhere",
                              {booleans({5, 7}), real({5, 7}), real({5, 7})}, run, choose));
  samples.push_back(pointwise("where", "three broadcast shapes",
                              {booleans({3, 1}), real({2, 3, 5}), real({5})}, run, choose));
  samples.push_back(
      pointwise("where", "scalar branches", {booleans({11}), real({}), real({})}, run, choose));
}

void add_predicates(std::vector<OpSample>& samples) {
  const auto add = [&](OpSample sample) {
    sample.floats_only = false;
    samples.push_back(std::move(sample));
  };
  add(pointwise(
      "logical_and", "bools", {booleans({5, 7}), booleans({7})},
      [](std::span<const Tensor> in) -> Tensors { return {logical_and(in[0], in[1])}; },
      [](std::span<const double> v) { return v[0] != 0 && v[1] != 0 ? 1.0 : 0.0; }));
  add(pointwise(
      "logical_not", "bools", {booleans({5, 7})},
      [](std::span<const Tensor> in) -> Tensors { return {logical_not(in[0])}; },
      [](std::span<const double> v) { return v[0] == 0 ? 1.0 : 0.0; }));
  add(pointwise(
      "logical_not", "numbers", {ids({5, 7}, 3)},
      [](std::span<const Tensor> in) -> Tensors { return {logical_not(in[0])}; },
      [](std::span<const double> v) { return v[0] == 0 ? 1.0 : 0.0; }));
  // 1 / 0 and 0 / 0 among finite numbers.
  add(pointwise(
      "isfinite", "with infinities and NaN", {ids({6, 7}, 2), ids({7}, 2)},
      [](std::span<const Tensor> in) -> Tensors {
        const Tensor a = cast(in[0], DType::f64);
        return {isfinite(div(a, cast(in[1], DType::f64)))};
      },
      [](std::span<const double> v) { return v[1] != 0 ? 1.0 : 0.0; }));
  add(pointwise(
      "isfinite", "finite floats", {real({5, 3})},
      [](std::span<const Tensor> in) -> Tensors { return {isfinite(in[0])}; },
      [](std::span<const double>) { return 1.0; }));
}

}  // namespace

void add_binary_samples(std::vector<OpSample>& samples) {
  const std::pair<Shape, Shape> kShapes[] = {
      {{5, 7}, {5, 7}}, {{2, 3, 5}, {3, 1}}, {{4, 1}, {1, 67}},
      {{}, {3}},        {{0, 3}, {1}},       {{13}, {13}},
  };
  for (const Row& row : kRows) {
    for (const auto& [a, b] : kShapes) samples.push_back(binary_sample(row, a, b));
  }
  for (const auto& [scale, offset] : {std::pair{-1.5, 0.25}, std::pair{3.0, 0.0}}) {
    samples.push_back(pointwise(
        "affine", fmt::format("{} x + {}", scale, offset), {real({3, 23})},
        [scale = scale, offset = offset](std::span<const Tensor> in) -> Tensors {
          return {affine(in[0], scale, offset)};
        },
        [scale = scale, offset = offset](std::span<const double> v) {
          return scale * v[0] + offset;
        }));
  }
  add_where(samples);
  add_predicates(samples);
}

}  // namespace faultline::test
