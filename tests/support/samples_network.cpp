#include <algorithm>
#include <cmath>

#include "autograd/op.h"
#include "core/rng.h"
#include "kernels/attributes.h"
#include "tests/support/op_samples.h"

// softmax and its kin, cross entropy, layer norm, dropout.
namespace faultline::test {
namespace {

// Applies `row` to every row of the last dimension.
Dense by_row(const Dense& x,
             const std::function<std::vector<double>(std::span<const double>)>& row) {
  Dense result{x.shape, {}};
  const auto length = static_cast<size_t>(x.shape[-1]);
  for (size_t begin = 0; begin < x.values.size(); begin += length) {
    const auto values = row(std::span(x.values).subspan(begin, length));
    result.values.insert(result.values.end(), values.begin(), values.end());
  }
  return result;
}

double log_sum_exp(std::span<const double> row) {
  const double m = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const double x : row) sum += std::exp(x - m);
  return m + std::log(sum);
}

Dense log_softmax_of(const Dense& x) {
  return by_row(x, [](std::span<const double> row) {
    std::vector<double> result;
    for (const double value : row) result.push_back(value - log_sum_exp(row));
    return result;
  });
}

Dense exp_of(Dense x) {
  for (double& value : x.values) value = std::exp(value);
  return x;
}

using OneOutput = std::function<Dense(std::span<const Dense>)>;

OpSample one_output(Op op, std::string what, std::vector<Input> inputs, const OneOutput& oracle) {
  return {
      .op = definition(op).name,
      .what = std::move(what),
      .inputs = std::move(inputs),
      .run = [op](std::span<const Tensor> in) -> Tensors { return {apply(definition(op), in)[0]}; },
      .oracle = [oracle](std::span<const Dense> in) -> std::vector<Dense> { return {oracle(in)}; }};
}

void add_softmax(std::vector<OpSample>& samples) {
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 3, 67}, Shape{1}, Shape{0, 4}}) {
    const auto what = to_string(shape);
    samples.push_back(one_output(Op::softmax, what, {real(shape, -4, 4)},
                                 [](auto in) { return exp_of(log_softmax_of(in[0])); }));
    samples.push_back(one_output(Op::log_softmax, what, {real(shape, -4, 4)},
                                 [](auto in) { return log_softmax_of(in[0]); }));
    // dy and y; y need not sum to one for the formula.
    samples.push_back(
        one_output(Op::softmax_backward, what, {real(shape), real(shape, 0, 0.3)}, [](auto in) {
          return generate(in[0].shape, [&](Dims i) {
            const double y = in[1].at(i);
            const double dy = in[0].at(i);
            double sum = 0;
            for (i[-1] = 0; i[-1] < in[0].shape[-1]; ++i[-1]) sum += in[1].at(i) * in[0].at(i);
            return y * (dy - sum);
          });
        }));
    samples.push_back(
        one_output(Op::log_softmax_backward, what, {real(shape), real(shape, -4, -1)}, [](auto in) {
          return generate(in[0].shape, [&](Dims i) {
            const double weight = std::exp(in[1].at(i));
            const double dy = in[0].at(i);
            double sum = 0;
            for (i[-1] = 0; i[-1] < in[0].shape[-1]; ++i[-1]) sum += in[0].at(i);
            return dy - weight * sum;
          });
        }));
  }
  // Without the row's maximum exp would overflow.
  samples.push_back(one_output(Op::softmax, "scores around 1000", {real({3, 9}, 990, 1010)},
                               [](auto in) { return exp_of(log_softmax_of(in[0])); }));
  samples.back().unit_scale = false;
  samples.back().has_16_bit = false;  // 1000 has no fraction in bf16: nothing left to test
  // exp(x - m) sees x rounded to f64 at 1000: 1e-13, and cubed by the spread of 20.
  samples.back().oracle_tolerance = 1e-11;
}

// Loss and log-sum-exp of every row; labels of -1 are ignored.
std::vector<Dense> cross_entropy_of(std::span<const Dense> in) {
  const int64_t rows = in[0].shape[0];
  Dense loss{{rows}, {}};
  Dense lse{{rows}, {}};
  for (int64_t n = 0; n < rows; ++n) {
    const auto width = static_cast<size_t>(in[0].shape[1]);
    const auto row = std::span(in[0].values).subspan(static_cast<size_t>(n) * width, width);
    const double label = in[1].at({n});
    lse.values.push_back(log_sum_exp(row));
    loss.values.push_back(label < 0 ? 0 : lse.values.back() - row[static_cast<size_t>(label)]);
  }
  return {loss, lse};
}

void add_cross_entropy(std::vector<OpSample>& samples) {
  const std::tuple<int64_t, int64_t, DType> kSizes[] = {
      {7, 11, DType::i64}, {5, 1, DType::i32}, {1, 300, DType::i64}, {0, 4, DType::i64}};
  for (const auto& [rows, classes, dtype] : kSizes) {
    const auto what = fmt::format("[{}, {}]", rows, classes);
    const Input labels = ids({rows}, classes, dtype, -1);
    samples.push_back({.op = "cross_entropy",
                       .what = what,
                       .inputs = {real({rows, classes}, -4, 4), labels},
                       .run = [](std::span<const Tensor> in) -> Tensors {
                         const Outputs out =
                             apply(definition(Op::cross_entropy), in, CrossEntropyAttributes{-1});
                         return {out[0], out[1]};
                       },
                       .oracle = cross_entropy_of});
    samples.push_back(
        {.op = "cross_entropy_backward",
         .what = what,
         .inputs = {real({rows, classes}, -4, 4), labels, real({rows})},
         .run = [](std::span<const Tensor> in) -> Tensors {
           const Tensor lse =
               apply(definition(Op::cross_entropy), in.first(2), CrossEntropyAttributes{-1})[1];
           return {apply(Op::cross_entropy_backward, {in[0], in[1], lse, cast(in[2], lse.dtype())},
                         CrossEntropyAttributes{-1})};
         },
         .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
           return {pullback([](auto x) { return cross_entropy_of(x)[0]; }, in.first(2), 0, in[2])};
         },
         .oracle_tolerance = 1e-8});
  }
}

constexpr double kEpsilon = 1e-5;

// y, mean and 1 / deviation of every row; weight and bias where given.
std::vector<Dense> layer_norm_of(std::span<const Dense> in) {
  const auto width = static_cast<size_t>(in[0].shape[-1]);
  const auto rows = static_cast<int64_t>(in[0].values.size() / width);
  Dense y{in[0].shape, {}};
  Dense mean{{rows}, {}};
  Dense rstd{{rows}, {}};
  for (size_t begin = 0; begin < in[0].values.size(); begin += width) {
    const auto row = std::span(in[0].values).subspan(begin, width);
    double sum = 0;
    double squares = 0;
    for (const double x : row) sum += x;
    mean.values.push_back(sum / static_cast<double>(width));
    for (const double x : row) squares += std::pow(x - mean.values.back(), 2);
    rstd.values.push_back(1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon));
    for (size_t i = 0; i < width; ++i) {
      const double n = (row[i] - mean.values.back()) * rstd.values.back();
      const double weight = in.size() > 1 ? in[1].values[i] : 1;
      y.values.push_back(n * weight + (in.size() > 2 ? in[2].values[i] : 0));
    }
  }
  return {y, mean, rstd};
}

Tensors normalized(std::span<const Tensor> in) {
  const Tensor all[] = {in[0], in.size() > 1 ? in[1] : Tensor(), in.size() > 2 ? in[2] : Tensor()};
  const Outputs out = apply(definition(Op::layer_norm), all, LayerNormAttributes{kEpsilon});
  return {out[0], out[1], out[2]};
}

void add_layer_norm(std::vector<OpSample>& samples) {
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 3, 67}, Shape{3, 1}, Shape{13}, Shape{0, 5}}) {
    const Shape features{shape[-1]};
    const std::vector<Input> all{real(shape), real(features), real(features)};
    for (size_t given = 1; given <= 3; given += shape == Shape{5, 7} ? 1 : 2) {
      samples.push_back({.op = "layer_norm",
                         .what = fmt::format("{} with {} inputs", to_string(shape), given),
                         .inputs = {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(given)},
                         .run = normalized,
                         .oracle = layer_norm_of});
    }
    samples.push_back(
        {.op = "layer_norm_backward",
         .what = to_string(shape),
         .inputs = {real(shape), real(shape), real(features)},
         .run = [](std::span<const Tensor> in) -> Tensors {
           const Tensors forward = normalized(in.subspan(1, 1));
           const Tensor inputs[] = {in[0], in[1], in[2], forward[1], forward[2]};
           const Outputs out =
               apply(definition(Op::layer_norm_backward), inputs, LayerNormAttributes{kEpsilon});
           return {out[0], out[1], out[2]};
         },
         .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
           const std::vector<Dense> x{in[1], in[2], in[2]};  // any bias will do
           const auto y = [](auto inputs) { return layer_norm_of(inputs)[0]; };
           return {pullback(y, x, 0, in[0]), pullback(y, x, 1, in[0]), pullback(y, x, 2, in[0])};
         },
         .oracle_tolerance = 1e-7});
  }
}

void add_dropout(std::vector<OpSample>& samples) {
  for (const double p : {0.25, 0.9}) {
    samples.push_back({.op = "dropout",
                       .what = fmt::format("p = {}", p),
                       .inputs = {real({3, 5, 7}), key()},
                       .run = [p](std::span<const Tensor> in) -> Tensors {
                         return {dropout(in[0], in[1], p, 4)};
                       },
                       .oracle = [p](std::span<const Dense> in) -> std::vector<Dense> {
                         return {generate(in[0].shape, [&](const Dims& i) {
                           const auto place = static_cast<uint32_t>(i[1] * 7 + i[2]);
                           const auto sequence =
                               static_cast<uint32_t>(in[1].values[2]) + static_cast<uint32_t>(i[0]);
                           const auto random =
                               philox({place, sequence, 4, static_cast<uint32_t>(in[1].values[1])},
                                      {static_cast<uint32_t>(in[1].values[0]), 0});
                           return random[0] * 0x1p-32 >= p ? in[0].at(i) / (1 - p) : 0.0;
                         })};
                       }});
  }
}

}  // namespace

void add_network_samples(std::vector<OpSample>& samples) {
  add_softmax(samples);
  add_cross_entropy(samples);
  add_layer_norm(samples);
  add_dropout(samples);
}

}  // namespace faultline::test
