// Along the last dimension:
// layer_norm (Ba, Kiros and Hinton, "Layer normalization", 2016):
//   y = xhat w + b, xhat = (x - mean) / sqrt(variance + epsilon), variance over n, not n - 1;
// rms_norm (Zhang and Sennrich, "Root mean square layer normalization", 2019):
//   y = xhat w, xhat = x / sqrt(mean(x^2) + epsilon).

#include <cmath>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"

namespace faultline::reference {

namespace {
template <class T>
T mean_of(const std::vector<T>& values) {
  T total(0);
  for (const T& value : values) total += value;
  return total / static_cast<double>(values.size());
}

// The elements of an optional vector, or `count` times `otherwise`.
template <class T>
std::vector<T> read_or(const TensorView& view, int64_t count, T otherwise) {
  if (view.defined()) return read_all<T>(view);
  return std::vector<T>(static_cast<size_t>(count), otherwise);
}
}  // namespace

// Inputs x, weight and bias (each may be absent); outputs y, mean, 1 / standard deviation.
void layer_norm(const KernelArgs& args) {
  const double epsilon = args.attributes.as<LayerNormAttributes>().epsilon;
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    const auto weight = read_or<T>(args.inputs[1], x.length(), T(1));
    const auto bias = read_or<T>(args.inputs[2], x.length(), T(0));
    std::vector<T> means;
    std::vector<T> rstds;
    for (int64_t row = 0; row < x.count(); ++row) {
      std::vector<T> values = x.read(row);
      const T mean = mean_of(values);
      T variance(0);
      for (const T& value : values) variance += (value - mean) * (value - mean);
      variance /= static_cast<double>(values.size());
      const T rstd = 1.0 / std::sqrt(variance + epsilon);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = (values[i] - mean) * rstd * weight[i] + bias[i];
      }
      y.write(row, values);
      means.push_back(mean);
      rstds.push_back(rstd);
    }
    if (args.outputs[1].defined()) write_all(args.outputs[1], means);
    if (args.outputs[2].defined()) write_all(args.outputs[2], rstds);
  });
}

// With g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)); dw = sum dy xhat; db = sum dy.
// Inputs dy, x, weight (may be absent), mean, rstd; outputs dx, dw, db (each may be absent).
void layer_norm_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> dy(args.inputs[0]);
    const Rows<T> x(args.inputs[1]);
    const auto weight = read_or<T>(args.inputs[2], x.length(), T(1));
    const auto means = read_all<T>(args.inputs[3]);
    const auto rstds = read_all<T>(args.inputs[4]);
    std::vector<T> dweight(weight.size(), T(0));
    std::vector<T> dbias(weight.size(), T(0));
    for (int64_t row = 0; row < x.count(); ++row) {
      const std::vector<T> gradient = dy.read(row);
      const T rstd = rstds[static_cast<size_t>(row)];
      std::vector<T> xhat = x.read(row);
      std::vector<T> g(xhat.size());
      std::vector<T> g_xhat(xhat.size());
      for (size_t i = 0; i < xhat.size(); ++i) {
        xhat[i] = (xhat[i] - means[static_cast<size_t>(row)]) * rstd;
        g[i] = gradient[i] * weight[i];
        g_xhat[i] = g[i] * xhat[i];
        dweight[i] += gradient[i] * xhat[i];
        dbias[i] += gradient[i];
      }
      if (!args.outputs[0].defined()) continue;
      const T mean_g = mean_of(g);
      const T mean_g_xhat = mean_of(g_xhat);
      for (size_t i = 0; i < g.size(); ++i) g[i] = rstd * (g[i] - mean_g - xhat[i] * mean_g_xhat);
      Rows<T>(args.outputs[0]).write(row, g);
    }
    if (args.outputs[1].defined()) write_all(args.outputs[1], dweight);
    if (args.outputs[2].defined()) write_all(args.outputs[2], dbias);
  });
}

// Inputs x and weight (may be absent); outputs y, 1 / root mean square.
void rms_norm(const KernelArgs& args) {
  const double epsilon = args.attributes.as<RmsNormAttributes>().epsilon;
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    const auto weight = read_or<T>(args.inputs[1], x.length(), T(1));
    std::vector<T> rstds;
    for (int64_t row = 0; row < x.count(); ++row) {
      std::vector<T> values = x.read(row);
      std::vector<T> squares = values;
      for (T& square : squares) square *= square;
      const T rstd = 1.0 / std::sqrt(mean_of(squares) + epsilon);
      for (size_t i = 0; i < values.size(); ++i) values[i] *= rstd * weight[i];
      y.write(row, values);
      rstds.push_back(rstd);
    }
    if (args.outputs[1].defined()) write_all(args.outputs[1], rstds);
  });
}

// With g = dy w: dx = rstd (g - xhat mean(g xhat)); dw = sum dy xhat.
// Inputs dy, x, weight (may be absent), rstd; outputs dx, dw (each may be absent).
void rms_norm_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> dy(args.inputs[0]);
    const Rows<T> x(args.inputs[1]);
    const auto weight = read_or<T>(args.inputs[2], x.length(), T(1));
    const auto rstds = read_all<T>(args.inputs[3]);
    std::vector<T> dweight(weight.size(), T(0));
    for (int64_t row = 0; row < x.count(); ++row) {
      const std::vector<T> gradient = dy.read(row);
      const T rstd = rstds[static_cast<size_t>(row)];
      std::vector<T> xhat = x.read(row);
      std::vector<T> g(xhat.size());
      std::vector<T> g_xhat(xhat.size());
      for (size_t i = 0; i < xhat.size(); ++i) {
        xhat[i] *= rstd;
        g[i] = gradient[i] * weight[i];
        g_xhat[i] = g[i] * xhat[i];
        dweight[i] += gradient[i] * xhat[i];
      }
      if (!args.outputs[0].defined()) continue;
      const T mean_g_xhat = mean_of(g_xhat);
      for (size_t i = 0; i < g.size(); ++i) g[i] = rstd * (g[i] - xhat[i] * mean_g_xhat);
      Rows<T>(args.outputs[0]).write(row, g);
    }
    if (args.outputs[1].defined()) write_all(args.outputs[1], dweight);
  });
}

}  // namespace faultline::reference
