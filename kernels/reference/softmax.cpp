// softmax, log_softmax, masked_softmax and cross_entropy, along the last dimension.
// Each subtracts the row's greatest real part m first: exp(x - m) cannot overflow, and the result
// does not depend on m (Blanchard, Higham and Higham, "Accurately computing the log-sum-exp and
// softmax functions", IMA J. Numer. Anal. 41, 2021).

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/reference/loops.h"
#include "kernels/reference/visibility.h"

namespace faultline::reference {

namespace {
template <class T>
double greatest_real(const std::vector<T>& row) {
  double greatest = -std::numeric_limits<double>::infinity();
  for (const T& x : row) greatest = std::max(greatest, static_cast<double>(real_of(x)));
  return greatest;
}

template <class T>
std::vector<T> softmax_of(std::vector<T> row) {
  const double m = greatest_real(row);
  T total(0);
  for (T& x : row) {
    x = std::exp(x - m);
    total += x;
  }
  for (T& x : row) x /= total;
  return row;
}

template <class T>
T log_sum_exp(const std::vector<T>& row) {
  const double m = greatest_real(row);
  T total(0);
  for (const T& x : row) total += std::exp(x - m);
  return m + std::log(total);
}

template <class T>
T dot(const std::vector<T>& a, const std::vector<T>& b) {
  T total(0);
  for (size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

// Softmax over the keys that `visible(k)` allows, zeros elsewhere. Other scores are not computed
// with at all, so that a NaN in one of them stays where it is.
template <class T, class Visible>
std::vector<T> softmax_where(const std::vector<T>& scores, double scale, Visible visible) {
  std::vector<T> seen;
  for (size_t k = 0; k < scores.size(); ++k) {
    if (visible(static_cast<int64_t>(k))) seen.push_back(scores[k] * scale);
  }
  const std::vector<T> weights = softmax_of(std::move(seen));
  std::vector<T> result(scores.size(), T(0));
  size_t next = 0;
  for (size_t k = 0; k < scores.size(); ++k) {
    if (visible(static_cast<int64_t>(k))) result[k] = weights[next++];
  }
  return result;
}

// Labels of a cross entropy over `classes`, checked.
std::vector<int64_t> checked_labels(const TensorView& view, int64_t classes, int64_t ignore) {
  std::vector<int64_t> labels = read_all<int64_t>(view);
  for (size_t row = 0; row < labels.size(); ++row) {
    require(labels[row] == ignore || (labels[row] >= 0 && labels[row] < classes),
            "cross_entropy: label {} of row {} is outside of the {} classes and is not the ignore "
            "index {}",
            labels[row], row, classes, ignore);
  }
  return labels;
}
}  // namespace

void softmax(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    for (int64_t row = 0; row < x.count(); ++row) y.write(row, softmax_of(x.read(row)));
  });
}

// dx = y (dy - sum(y dy)); inputs dy, y.
void softmax_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> dy(args.inputs[0]);
    const Rows<T> y(args.inputs[1]);
    const Rows<T> dx(args.outputs[0]);
    for (int64_t row = 0; row < y.count(); ++row) {
      std::vector<T> gradient = dy.read(row);
      const std::vector<T> weights = y.read(row);
      const T mean = dot(gradient, weights);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = weights[i] * (gradient[i] - mean);
      }
      dx.write(row, gradient);
    }
  });
}

void log_softmax(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> x(args.inputs[0]);
    const Rows<T> y(args.outputs[0]);
    for (int64_t row = 0; row < x.count(); ++row) {
      std::vector<T> values = x.read(row);
      const double m = greatest_real(values);
      T total(0);
      for (const T& value : values) total += std::exp(value - m);
      // (x - m) - log: adding m to the logarithm first would lose its low bits when m is large.
      const T log_total = std::log(total);
      for (T& value : values) value = (value - m) - log_total;
      y.write(row, values);
    }
  });
}

// dx = dy - exp(y) sum(dy); inputs dy, y.
void log_softmax_backward(const KernelArgs& args) {
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> dy(args.inputs[0]);
    const Rows<T> y(args.inputs[1]);
    const Rows<T> dx(args.outputs[0]);
    for (int64_t row = 0; row < y.count(); ++row) {
      std::vector<T> gradient = dy.read(row);
      const std::vector<T> logs = y.read(row);
      T total(0);
      for (const T& g : gradient) total += g;
      for (size_t i = 0; i < gradient.size(); ++i) gradient[i] -= std::exp(logs[i]) * total;
      dx.write(row, gradient);
    }
  });
}

// Inputs scores [B, H, Q, K], key_valid [B, K] or absent, documents [B, K] or absent.
void masked_softmax(const KernelArgs& args) {
  const auto mask = args.attributes.as<MaskAttributes>();
  const Shape& shape = args.inputs[0].shape;
  invariant(shape.rank() == 4, "masked_softmax: scores are [B, H, Q, K], got {}", to_string(shape));
  const Visibility visible(mask, args.inputs[1], args.inputs[2], shape[2], shape[3],
                           "masked_softmax");
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> scores(args.inputs[0]);
    const Rows<T> weights(args.outputs[0]);
    for (int64_t row = 0; row < scores.count(); ++row) {
      const int64_t b = row / (shape[1] * shape[2]);
      const int64_t q = row % shape[2];
      weights.write(row, softmax_where(scores.read(row), mask.scale,
                                       [&](int64_t k) { return visible(b, q, k); }));
    }
  });
}

// loss = log sum exp(x) - x[label], 0 for an ignored row; outputs loss, log-sum-exp.
void cross_entropy(const KernelArgs& args) {
  const int64_t ignore = args.attributes.as<CrossEntropyAttributes>().ignore_index;
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> logits(args.inputs[0]);
    const auto labels = checked_labels(args.inputs[1], logits.length(), ignore);
    std::vector<T> losses(labels.size(), T(0));
    std::vector<T> lse(labels.size());
    for (size_t row = 0; row < labels.size(); ++row) {
      const std::vector<T> x = logits.read(static_cast<int64_t>(row));
      lse[row] = log_sum_exp(x);
      if (labels[row] != ignore) losses[row] = lse[row] - x[static_cast<size_t>(labels[row])];
    }
    write_all(args.outputs[0], losses);
    write_all(args.outputs[1], lse);
  });
}

// dx = (exp(x - lse) - onehot(label)) dloss, 0 for an ignored row; inputs logits, labels, lse,
// dloss.
void cross_entropy_backward(const KernelArgs& args) {
  const int64_t ignore = args.attributes.as<CrossEntropyAttributes>().ignore_index;
  with_real_scalar(args, [&]<class T>() {
    const Rows<T> logits(args.inputs[0]);
    const auto labels = checked_labels(args.inputs[1], logits.length(), ignore);
    const auto lse = read_all<T>(args.inputs[2]);
    const auto dloss = read_all<T>(args.inputs[3]);
    const Rows<T> dx(args.outputs[0]);
    for (size_t row = 0; row < labels.size(); ++row) {
      std::vector<T> gradient(static_cast<size_t>(logits.length()), T(0));
      if (labels[row] != ignore) {
        gradient = logits.read(static_cast<int64_t>(row));
        for (T& g : gradient) g = std::exp(g - lse[row]);
        gradient[static_cast<size_t>(labels[row])] -= 1.0;
        for (T& g : gradient) g *= dloss[row];
      }
      dx.write(static_cast<int64_t>(row), gradient);
    }
  });
}

}  // namespace faultline::reference
