#include <cmath>
#include <complex>

#include "autograd/op.h"
#include "kernels/attributes.h"
#include "tests/support/op_samples.h"

// rms_norm, rope, swiglu.
namespace faultline::test {
namespace {

// ---- rms_norm -----------------------------------------------------------------------------------

constexpr double kEpsilon = 1e-3;  // large enough that leaving it out would show

// x, and optionally weight.
std::vector<Dense> rms_norm_of(std::span<const Dense> in) {
  const Dense& x = in[0];
  const int64_t width = x.shape[-1];
  Dense rstd{Shape{numel(x.shape) / width}, {}};
  for (size_t begin = 0; begin < x.values.size(); begin += static_cast<size_t>(width)) {
    double norm = 0;  // Euclidean: hypot adds one square at a time
    for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i) {
      norm = std::hypot(norm, x.values[i]);
    }
    rstd.values.push_back(std::pow(norm * norm / static_cast<double>(width) + kEpsilon, -0.5));
  }
  size_t element = 0;
  const Dense y = generate(x.shape, [&](const Dims& i) {
    const double r = rstd.values[element++ / static_cast<size_t>(width)];
    return x.at(i) * r * (in.size() > 1 ? in[1].values[static_cast<size_t>(i[-1])] : 1.0);
  });
  return {y, rstd};
}

Tensors rms_normed(std::span<const Tensor> in) {
  const Tensor all[] = {in[0], in.size() > 1 ? in[1] : Tensor()};
  const Outputs out = apply(definition(Op::rms_norm), all, RmsNormAttributes{kEpsilon});
  return {out[0], out[1]};
}

void add_rms_norm(std::vector<OpSample>& samples) {
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 3, 67}, Shape{3, 2}, Shape{13}, Shape{0, 5}}) {
    const Shape features{shape[-1]};
    for (const bool weighted : {false, true}) {
      const std::vector<Input> inputs = weighted ? std::vector<Input>{real(shape), real(features)}
                                                 : std::vector<Input>{real(shape)};
      samples.push_back({.op = "rms_norm",
                         .what = to_string(shape) + (weighted ? " with weight" : ""),
                         .inputs = inputs,
                         .run = rms_normed,
                         .oracle = rms_norm_of});
    }
    samples.push_back(
        {.op = "rms_norm_backward",
         .what = to_string(shape),
         .inputs = {real(shape), real(shape), real(features)},
         .run = [](std::span<const Tensor> in) -> Tensors {
           const Tensors forward = rms_normed(in.subspan(1, 1));
           const Tensor inputs[] = {in[0], in[1], in[2], forward[1]};
           const Outputs out =
               apply(definition(Op::rms_norm_backward), inputs, RmsNormAttributes{kEpsilon});
           return {out[0], out[1]};
         },
         .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
           const auto y = [](auto inputs) { return rms_norm_of(inputs)[0]; };
           return {pullback(y, in.subspan(1), 0, in[0]), pullback(y, in.subspan(1), 1, in[0])};
         },
         .oracle_tolerance = 1e-7});
  }
}

// ---- rope ---------------------------------------------------------------------------------------

// Some angle for each sequence, position and pair, of every size and sign.
double angle_at(int64_t b, int64_t t, int64_t i) {
  return 0.7 * static_cast<double>(b) + 1.3 * static_cast<double>(t) / static_cast<double>(1 + i) -
         2.0 * static_cast<double>(i);
}
double cosine_at(int64_t b, int64_t t, int64_t i) {
  return static_cast<float>(std::cos(angle_at(b, t, i)));  // as the f32 tables hold it
}
double sine_at(int64_t b, int64_t t, int64_t i) {
  return static_cast<float>(std::sin(angle_at(b, t, i)));
}

Tensor table(double (*value)(int64_t, int64_t, int64_t), const Shape& shape, DType x) {
  const Dense values = generate(shape, [&](const Dims& i) { return value(i[0], i[1], i[2]); });
  return cast(tensor(values.values, shape), size_of(x) == 2 ? DType::f32 : x);
}

void add_rope(std::vector<OpSample>& samples) {
  for (const Shape& shape : {Shape{2, 3, 5, 8}, Shape{1, 1, 3, 2}, Shape{2, 1, 2, 34},
                             Shape{1, 2, 0, 4}, Shape{3, 2, 1, 0}}) {
    for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
      for (const bool per_sequence : {false, true}) {
        const bool halves = layout == RopeLayout::half_split;
        const Shape tables{per_sequence ? shape[0] : 1, shape[2], shape[3] / 2};
        samples.push_back(
            {.op = "rope",
             .what = fmt::format("{} {}{}", to_string(shape), halves ? "half-split" : "interleaved",
                                 per_sequence ? ", positions of each sequence" : ""),
             .inputs = {real(shape)},
             .run = [=](std::span<const Tensor> in) -> Tensors {
               return {rope(in[0], table(cosine_at, tables, in[0].dtype()),
                            table(sine_at, tables, in[0].dtype()), layout)};
             },
             // A pair is a complex number, and turning it a product.
             .oracle = [=](std::span<const Dense> in) -> std::vector<Dense> {
               return {generate(shape, [&](const Dims& at) {
                 const int64_t pairs = shape[3] / 2;
                 const int64_t pair = halves ? at[3] % pairs : at[3] / 2;
                 const bool second = halves ? at[3] >= pairs : at[3] % 2 == 1;
                 Dims a = at;
                 Dims b = at;
                 a[3] = halves ? pair : 2 * pair;
                 b[3] = halves ? pair + pairs : 2 * pair + 1;
                 const int64_t sequence = per_sequence ? at[0] : 0;
                 const std::complex<double> turn(cosine_at(sequence, at[2], pair),
                                                 sine_at(sequence, at[2], pair));
                 const auto y = std::complex<double>(in[0].at(a), in[0].at(b)) * turn;
                 return second ? y.imag() : y.real();
               })};
             }});
      }
    }
  }
}

// ---- swiglu -------------------------------------------------------------------------------------

std::vector<Dense> swiglu_of(std::span<const Dense> in) {
  return {generate(in[0].shape, [&](const Dims& i) {
    return in[0].at(i) / (1 + std::exp(-in[0].at(i))) * in[1].at(i);
  })};
}

void add_swiglu(std::vector<OpSample>& samples) {
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 3, 67}, Shape{}, Shape{0, 4}}) {
    samples.push_back(
        {.op = "swiglu",
         .what = to_string(shape),
         .inputs = {real(shape, -4, 4), real(shape)},
         .run = [](std::span<const Tensor> in) -> Tensors { return {swiglu(in[0], in[1])}; },
         .oracle = swiglu_of});
    samples.push_back(
        {.op = "swiglu_backward",
         .what = to_string(shape),
         .inputs = {real(shape), real(shape, -4, 4), real(shape)},
         .run = [](std::span<const Tensor> in) -> Tensors {
           const Outputs out = apply(definition(Op::swiglu_backward), in);
           return {out[0], out[1]};
         },
         .oracle = [](std::span<const Dense> in) -> std::vector<Dense> {
           const auto y = [](auto inputs) { return swiglu_of(inputs)[0]; };
           return {pullback(y, in.subspan(1), 0, in[0]), pullback(y, in.subspan(1), 1, in[0])};
         },
         .oracle_tolerance = 1e-7});
  }
}

}  // namespace

void add_llama_samples(std::vector<OpSample>& samples) {
  add_rms_norm(samples);
  add_rope(samples);
  add_swiglu(samples);
}

}  // namespace faultline::test
