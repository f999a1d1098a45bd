#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "core/rng.h"

namespace faultline {
namespace {

using Complex = std::complex<double>;

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kComplexStep = 1e-100;
constexpr int64_t kMostSingleOutputs = 64;

void check_inputs(const std::vector<Tensor>& inputs, const char* method) {
  for (const Tensor& input : inputs) {
    require(!is_floating(input.dtype()) || input.dtype() == DType::f64,
            "{}: floating inputs must be f64, got {}; use cast", method, input);
  }
}

Tensor call(const TensorFunction& f, const std::vector<Tensor>& inputs, DType wanted,
            const char* method) {
  Tensor output = f(inputs);
  require(output.dtype() == wanted, "{}: the function must return {} here, got {}", method,
          name(wanted), output);
  return output;
}

// The inputs as fresh leaves.
std::vector<Tensor> leaves_of(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(clone(input.detach()));
    if (is_floating(input.dtype())) set_requires_grad(leaves.back());
  }
  return leaves;
}

// Gradients of sum(cotangent * f) for every input (empty for constants).
std::vector<std::vector<double>> reverse_mode(const TensorFunction& f,
                                              const std::vector<Tensor>& inputs,
                                              const std::vector<double>& cotangent,
                                              const char* method) {
  const Scoped<bool> on(Context::current().gradients, true);
  const std::vector<Tensor> leaves = leaves_of(inputs);
  const Tensor output = call(f, leaves, DType::f64, method);
  std::vector<Tensor> wanted;
  std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(wanted),
               [](const Tensor& leaf) { return requires_grad(leaf); });
  const std::vector<Tensor> found = gradients(output, wanted, tensor(cotangent, output.shape()));
  std::vector<std::vector<double>> result;
  size_t next = 0;
  for (const Tensor& leaf : leaves) {
    result.push_back(requires_grad(leaf) ? found[next++].to_vector<double>()
                                         : std::vector<double>());
  }
  return result;
}

// d outputs / d one input element, and how far each entry may be off by its own making.
struct Column {
  std::vector<double> slopes;
  double rounding = 0;
};

// Gives the column of element `element` of input `input`.
using ColumnRule = std::function<Column(int input, int64_t element)>;

// How far reverse mode may be from an expected value whose terms have the sum of magnitudes
// `terms`.
using Allowance =
    std::function<double(double reverse, double expected, double terms, double rounding)>;

class Comparison {
 public:
  Comparison(const TensorFunction& f, const std::vector<Tensor>& inputs, const char* method)
      : f_(f), inputs_(inputs), method_(method) {
    const NoGrad off;
    outputs_ = call(f, inputs, DType::f64, method).numel();
  }

  GradcheckReport run(const ColumnRule& column, const Allowance& allowance) {
    GradcheckReport report;
    report.method = method_;
    std::vector<std::vector<double>> cotangents{random_cotangent()};
    for (int64_t j = 0; j < outputs_ && outputs_ <= kMostSingleOutputs; ++j) {
      cotangents.emplace_back(static_cast<size_t>(outputs_), 0.0);
      cotangents.back()[static_cast<size_t>(j)] = 1;
    }
    std::vector<std::vector<std::vector<double>>> reverse;
    for (const auto& cotangent : cotangents) {
      reverse.push_back(reverse_mode(f_, inputs_, cotangent, method_));
    }
    for (int i = 0; i < static_cast<int>(inputs_.size()); ++i) {
      const Tensor& input = inputs_[static_cast<size_t>(i)];
      if (!is_floating(input.dtype())) continue;
      for (int64_t e = 0; e < input.numel(); ++e) {
        const Column truth = column(i, e);
        for (size_t c = 0; c < cotangents.size(); ++c) {
          const double got = reverse[c][static_cast<size_t>(i)][static_cast<size_t>(e)];
          compare(report, {i, e, static_cast<int64_t>(c) - 1, got}, truth, cotangents[c],
                  allowance);
        }
      }
    }
    std::sort(report.mismatches.begin(), report.mismatches.end(), worse);
    return report;
  }

 private:
  // Between a half and one and a half, with random signs: no output weighs nothing.
  std::vector<double> random_cotangent() const {
    const RandomSequence random(Context::current().seed, stream_of("gradcheck"));
    std::vector<double> result;
    for (int64_t j = 0; j < outputs_; ++j) {
      const auto index = static_cast<uint64_t>(j);
      const double size = 0.5 + random.uniform(2 * index);
      result.push_back(random.uniform(2 * index + 1) < 0.5 ? -size : size);
    }
    return result;
  }

  static void compare(GradcheckReport& report, GradientMismatch entry, const Column& truth,
                      const std::vector<double>& cotangent, const Allowance& allowance) {
    double terms = 0;
    for (size_t j = 0; j < cotangent.size(); ++j) {
      if (cotangent[j] == 0) continue;
      entry.expected += cotangent[j] * truth.slopes[j];
      terms += std::abs(cotangent[j] * truth.slopes[j]);
    }
    entry.allowed = allowance(entry.reverse, entry.expected, terms, truth.rounding);
    ++report.compared;
    // Written so that a NaN on either side is a mismatch.
    const bool agrees = std::abs(entry.reverse - entry.expected) <= entry.allowed;
    if (!agrees) report.mismatches.push_back(entry);
  }

  static double excess(const GradientMismatch& m) {
    const double ratio = std::abs(m.reverse - m.expected) / m.allowed;
    return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
  }
  static bool worse(const GradientMismatch& a, const GradientMismatch& b) {
    return excess(a) > excess(b);
  }

  const TensorFunction& f_;
  const std::vector<Tensor>& inputs_;
  const char* method_;
  int64_t outputs_ = 0;
};

double sum_of_magnitudes(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::abs(value);
  return sum;
}

}  // namespace

GradcheckReport gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs) {
  constexpr const char* kMethod = "central differences";
  check_inputs(inputs, kMethod);
  const auto values_at = [&](int input, const std::vector<double>& values) {
    const NoGrad off;
    std::vector<Tensor> moved = inputs;
    auto& slot = moved[static_cast<size_t>(input)];
    slot = tensor(values, slot.shape());
    return call(f, moved, DType::f64, kMethod).to_vector<double>();
  };
  const auto column = [&](int input, int64_t element) {
    std::vector<double> values = inputs[static_cast<size_t>(input)].to_vector<double>();
    double& x = values[static_cast<size_t>(element)];
    const double h = std::cbrt(kEpsilon) * std::max(1.0, std::abs(x));
    const double above = x + h;
    const double below = x - h;
    x = above;
    Column result{values_at(input, values)};
    x = below;
    const std::vector<double> low = values_at(input, values);
    result.rounding = kEpsilon * (sum_of_magnitudes(result.slopes) + sum_of_magnitudes(low)) / h;
    for (size_t j = 0; j < low.size(); ++j) {
      // The step that was really taken: x + h is rounded.
      result.slopes[j] = (result.slopes[j] - low[j]) / (above - below);
    }
    return result;
  };
  const auto allowance = [](double reverse, double expected, double, double rounding) {
    return 1e-7 * std::max({1.0, std::abs(reverse), std::abs(expected)}) + 32 * rounding;
  };
  return Comparison(f, inputs, kMethod).run(column, allowance);
}

GradcheckReport complex_step(const TensorFunction& f, const std::vector<Tensor>& inputs) {
  constexpr const char* kMethod = "complex step";
  check_inputs(inputs, kMethod);
  const auto column = [&](int input, int64_t element) {
    const NoGrad off;
    std::vector<Tensor> stepped;
    for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
      const Tensor& x = inputs[static_cast<size_t>(i)];
      if (!is_floating(x.dtype())) {
        stepped.push_back(x);
        continue;
      }
      std::vector<Complex> values = x.to_vector<Complex>();
      if (i == input) values[static_cast<size_t>(element)] += Complex(0, kComplexStep);
      stepped.push_back(tensor(values, x.shape()));
    }
    Column result;
    for (const Complex y : call(f, stepped, DType::c128, kMethod).to_vector<Complex>()) {
      result.slopes.push_back(y.imag() / kComplexStep);
    }
    return result;
  };
  const auto allowance = [](double reverse, double expected, double terms, double) {
    return 1e-11 * (std::max(std::abs(reverse), std::abs(expected)) + terms);
  };
  return Comparison(f, inputs, kMethod).run(column, allowance);
}

std::string GradcheckReport::text() const {
  if (compared == 0) return fmt::format("{}: no gradient element was compared", method);
  if (passed()) return fmt::format("{} gradient elements agree with {}", compared, method);
  const GradientMismatch& worst = mismatches.front();
  const std::string of = worst.output < 0 ? "a random combination of the outputs"
                                          : fmt::format("output element {}", worst.output);
  return fmt::format(
      "input {}, element {}: reverse mode gives {:.17g}, {} gives {:.17g} (allowed difference "
      "{:.3g}) for {}; {} of {} gradient elements differ",
      worst.input, worst.element, worst.reverse, method, worst.expected, worst.allowed, of,
      mismatches.size(), compared);
}

}  // namespace faultline
