// variance.positive: layer_norm's 1 / sqrt(variance + epsilon) must be that of its own input.
//
// Sees: each layer_norm launch: input, epsilon, and the rstd that it saved for the backward pass.
// Looks at every row whose rstd is not finite and at up to 16 others, and computes the variance
// again in double, in two passes.
// Fires: on a row of finite values where rstd is
//   - NaN: variance + epsilon came out negative, which only a difference can do;
//   - infinite: variance + epsilon came out 0 though epsilon is not;
//   - more than twice or less than half of what it should be, where the mean is more than ten times
//     the deviation: E[x^2] - E[x]^2 then loses the digits that it needs. bf16 rounding alone is
//     2^-9, and the choice of n - 1 for n moves rstd by a third at n = 2, so 2 is no rounding.
// Silent: an epsilon of 0 on a row of equal values; and a finite rstd where the deviation is below
// 2^-20 of the mean, which an f32 mean cannot resolve either.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "diagnose/detector.h"
#include "diagnose/values.h"
#include "kernels/attributes.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kSampledRows = 16;
constexpr double kOff = 2;
constexpr double kCancels = 10;  // mean in deviations
constexpr double kResolvable = 0x1p-20;

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments moments_of(const std::vector<double>& row) {
  Moments moments;
  const auto n = static_cast<double>(row.size());
  for (const double x : row) moments.mean += x / n;
  for (const double x : row) moments.variance += (x - moments.mean) * (x - moments.mean) / n;
  return moments;
}

// What is wrong with `rstd`; "" where nothing is, or nothing that can be said.
const char* what_is_wrong(double rstd, const Moments& moments, double epsilon) {
  const double inside = moments.variance + epsilon;
  if (inside == 0) return "";
  if (std::isnan(rstd)) return "variance + epsilon came out negative";
  if (std::isinf(rstd)) return "variance + epsilon came out 0";
  if (inside < std::pow(kResolvable * moments.mean, 2)) return "";
  const bool cancels = std::abs(moments.mean) > kCancels * std::sqrt(moments.variance);
  const double ratio = rstd * std::sqrt(inside);
  return cancels && (ratio > kOff || ratio < 1 / kOff) ? "E[x^2] - E[x]^2 lost its digits" : "";
}

class VariancePositive : public Watcher {
 public:
  VariancePositive(Context& context, Findings& findings)
      : Watcher(context, findings, "variance.positive") {
    on(&VariancePositive::launched);
  }

 private:
  void launched(const LaunchEvent& event) {
    const Launch& launch = event.launch;
    if (std::string_view(launch.label.op) != "layer_norm") return;
    const std::vector<double> rstds = sample(launch.args.outputs[2]);
    const auto rows = static_cast<int64_t>(rstds.size());
    const int64_t stride = std::max<int64_t>(1, rows / kSampledRows);
    for (int64_t row = 0; row < rows; ++row) {
      const double rstd = rstds[static_cast<size_t>(row)];
      if (row % stride != 0 && std::isfinite(rstd)) continue;
      if (judge(launch, row, rstd)) return;
    }
  }

  bool judge(const Launch& launch, int64_t row, double rstd) {
    const TensorView& x = launch.args.inputs[0];
    const int64_t length = x.shape[-1];
    const std::vector<double> values = read_values(x, row * length, length);
    if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
      return false;
    }
    looked();
    const Moments moments = moments_of(values);
    const double epsilon = launch.args.attributes.as<LayerNormAttributes>().epsilon;
    const char* wrong = what_is_wrong(rstd, moments, epsilon);
    if (*wrong == 0) return false;
    report("bf16.accumulate", 0.96, launch.label.op,
           fmt::format("{}: row {} of its {} input has mean {:.6g} and variance {:.3g}, epsilon is "
                       "{:.3g}, and rstd is {:.3g} for {:.3g} (kernel {})",
                       wrong, row, name(x.dtype), moments.mean, moments.variance, epsilon, rstd,
                       1 / std::sqrt(moments.variance + epsilon), launch.kernel->name));
    return true;
  }
};

}  // namespace

DETECTOR(variance_positive) {
  return {"variance.positive",
          WatchLevel::full,
          {{"bf16.accumulate",
            "The sums of a layer norm are kept in too few bits: E[x^2] - E[x]^2 cancels to less "
            "than 0, or epsilon rounds to 0 beside a variance of 0.",
            "Compute mean and variance in f32, in two passes or by Welford's update, and round "
            "only the result.",
            "The row that was normalised was not finite before, or epsilon is 0."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<VariancePositive>(context, findings);
          }};
}

}  // namespace faultline::diagnose
