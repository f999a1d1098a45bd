#include <cmath>
#include <numbers>

#include "autograd/op.h"
#include "tests/support/op_samples.h"

// Elementwise functions of one tensor: the formula in long double is the oracle of the value, and
// its central difference that of the backward op.
namespace faultline::test {
namespace {

using Real = long double;
using Formula = Real (*)(Real);

struct Row {
  Op op;
  Op backward;
  Formula formula;
  Input (*input)(const Shape&);
};

Input anywhere(const Shape& shape) { return real(shape, -3, 3); }
Input positive(const Shape& shape) { return real(shape, 0.2, 4); }
Input both_sides(const Shape& shape) { return nonzero(shape, 0.3, 3); }

Real normal_distribution(Real x) { return (1 + std::erf(x / std::numbers::sqrt2_v<Real>)) / 2; }
Real tanh_gelu(Real x) {
  const Real u = std::sqrt(2 * std::numbers::inv_pi_v<Real>) * (x + Real(0.044715) * x * x * x);
  return x * (1 + std::tanh(u)) / 2;
}
Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }

const Row kRows[] = {
    {Op::neg, Op::neg_backward, [](Real x) { return -x; }, anywhere},
    {Op::abs, Op::abs_backward, [](Real x) { return std::abs(x); }, both_sides},
    {Op::square, Op::square_backward, [](Real x) { return x * x; }, anywhere},
    {Op::sqrt, Op::sqrt_backward, [](Real x) { return std::sqrt(x); }, positive},
    {Op::rsqrt, Op::rsqrt_backward, [](Real x) { return 1 / std::sqrt(x); }, positive},
    {Op::reciprocal, Op::reciprocal_backward, [](Real x) { return 1 / x; }, both_sides},
    {Op::exp, Op::exp_backward, [](Real x) { return std::exp(x); }, anywhere},
    {Op::log, Op::log_backward, [](Real x) { return std::log(x); }, positive},
    {Op::sin, Op::sin_backward, [](Real x) { return std::sin(x); }, anywhere},
    {Op::cos, Op::cos_backward, [](Real x) { return std::cos(x); }, anywhere},
    {Op::tanh, Op::tanh_backward, [](Real x) { return std::tanh(x); }, anywhere},
    {Op::sigmoid, Op::sigmoid_backward, logistic, anywhere},
    {Op::relu, Op::relu_backward, [](Real x) { return x > 0 ? x : 0; }, both_sides},
    {Op::silu, Op::silu_backward, [](Real x) { return x * logistic(x); }, anywhere},
    {Op::gelu, Op::gelu_backward, tanh_gelu, anywhere},
    {Op::gelu_erf, Op::gelu_erf_backward, [](Real x) { return x * normal_distribution(x); },
     anywhere},
};

Real slope(Formula f, Real x) {
  constexpr Real kStep = 1e-6L;  // errs by kStep^2 f''' and 1e-19 / kStep: below 1e-11
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

OpSample value_sample(const Row& row, const Shape& shape) {
  return {
      .op = definition(row.op).name,
      .what = to_string(shape),
      .inputs = {row.input(shape)},
      .run = [op = row.op](std::span<const Tensor> in) -> Tensors { return {apply(op, {in[0]})}; },
      .oracle = [f = row.formula](std::span<const Dense> in) -> std::vector<Dense> {
        return {generate(in[0].shape,
                         [&](const Dims& i) { return static_cast<double>(f(in[0].at(i))); })};
      }};
}

OpSample backward_sample(const Row& row, const Shape& shape) {
  return {.op = definition(row.backward).name,
          .what = to_string(shape),
          .inputs = {real(shape), row.input(shape)},
          .run = [row](std::span<const Tensor> in) -> Tensors {
            return {apply(row.backward, {in[0], in[1], apply(row.op, {in[1]})})};
          },
          .oracle = [f = row.formula](std::span<const Dense> in) -> std::vector<Dense> {
            return {generate(in[0].shape, [&](const Dims& i) {
              return static_cast<double>(in[0].at(i) * slope(f, in[1].at(i)));
            })};
          },
          .oracle_tolerance = 1e-10};
}

}  // namespace

void add_unary_samples(std::vector<OpSample>& samples) {
  for (const Row& row : kRows) {
    // Lengths around the vector widths, with a tail; 0 and 1; several dimensions.
    for (const Shape& shape : {Shape{7, 5}, Shape{67}, Shape{}, Shape{3, 0}, Shape{2, 1, 3}}) {
      samples.push_back(value_sample(row, shape));
      samples.push_back(backward_sample(row, shape));
    }
  }
}

}  // namespace faultline::test
