#include "cli/op_profile.h"

#include <algorithm>

#include "autograd/functional.h"
#include "cli/ideal_step.h"
#include "core/context.h"

namespace faultline::cli {
namespace {

bool is_product(const Launch& launch) {
  const std::string_view op = launch.label.op;
  return op == "matmul" || op == "linear";
}

std::string name_of(const Launch& launch) {
  std::string text = fmt::format("{} {}", name(launch.label.phase), launch.label.op);
  if (!is_product(launch)) return text;
  const Shape& left = launch.args.inputs[0].shape;
  const Shape& result = launch.args.outputs[0].shape;
  // Batched where the right operand has leading dimensions too.
  const bool batched = launch.args.inputs[1].shape.rank() > 2;
  const int64_t rows = batched ? result[-2] : numel(result) / result[-1];
  text += fmt::format(" {}x{}x{}", rows, result[-1], left[-1]);
  if (batched) text += fmt::format(" of {}", numel(result) / (result[-1] * rows));
  return text;
}

// Each element once, however its view repeats it.
double bytes_of(const TensorView& view) {
  if (!view.defined()) return 0;
  auto bytes = static_cast<double>(size_of(view.dtype));
  for (int d = 0; d < view.shape.rank(); ++d) {
    if (view.strides[d] != 0) bytes *= static_cast<double>(view.shape[d]);
  }
  return bytes;
}

double bytes_of(const Launch& launch) {
  double bytes = 0;
  for (int i = 0; i < launch.args.input_count; ++i) bytes += bytes_of(launch.args.inputs[i]);
  for (int i = 0; i < launch.args.output_count; ++i) bytes += bytes_of(launch.args.outputs[i]);
  for (const ByteRange& range : launch.indirect_reads) {
    bytes += static_cast<double>(range.end - range.begin);
  }
  // An update in place reads what it writes.
  for (const ByteRange& range : launch.indirect_writes) {
    bytes += 2 * static_cast<double>(range.end - range.begin);
  }
  return bytes;
}

// A rate in 10^9 a second; 0 for what took no time that the clock sees.
double giga(double amount, double milliseconds) {
  return milliseconds > 0 ? amount / milliseconds / 1e6 : 0;
}

}  // namespace

OpProfile::OpProfile()
    : subscription_(Context::current().events.subscribe<LaunchEvent>(
          [this](const LaunchEvent& event) { see(event.launch); })) {}

void OpProfile::begin_step() {
  ++steps_;
  last_ = std::chrono::steady_clock::now();
}

void OpProfile::end_step() { charge(rows_["other after the last launch"]); }

void OpProfile::charge(Row& row) {
  const auto now = std::chrono::steady_clock::now();
  row.milliseconds.resize(steps_);
  row.milliseconds.back() += std::chrono::duration<double, std::milli>(now - last_).count();
  last_ = std::chrono::steady_clock::now();  // what the profile takes itself is nobody's
}

void OpProfile::see(const Launch& launch) {
  if (steps_ == 0) return;
  Row& row = rows_[name_of(launch)];
  charge(row);
  ++row.calls;
  row.bytes += bytes_of(launch);
  if (is_product(launch)) row.flops += launch.flops;
}

std::string OpProfile::table(double flops_per_ms, double bytes_per_ms) const {
  struct Line {
    double milliseconds;
    std::string text;
  };
  std::vector<Line> lines;
  const auto steps = static_cast<double>(steps_);
  double total = 0;
  double total_bound = 0;
  for (const auto& [name, row] : rows_) total += median(row.milliseconds);
  for (const auto& [name, row] : rows_) {
    const double spent = median(row.milliseconds);
    const double flops = row.flops / steps;
    const double bytes = row.bytes / steps;
    const double bound = std::max(flops / flops_per_ms, bytes / bytes_per_ms);
    total_bound += bound;
    lines.push_back(
        {spent, fmt::format("{:45} {:5.0f} {:9.3f} {:9.3f} {:8.1f} {:8.1f} {:6.1f}\n", name,
                            static_cast<double>(row.calls) / steps, spent, bound,
                            giga(bytes, spent), giga(flops, spent), 100 * spent / total)});
  }
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.milliseconds > b.milliseconds; });
  std::string text = fmt::format("{:45} {:>5} {:>9} {:>9} {:>8} {:>8} {:>6}\n", "phase and op",
                                 "calls", "ms", "bound ms", "GB/s", "GFLOP/s", "%");
  for (const Line& line : lines) text += line.text;
  return text + fmt::format("{:45} {:5} {:9.3f} {:9.3f}\n", "all", "", total, total_bound);
}

double product_flops_per_ms() {
  constexpr int64_t kSize = 1024;
  const NoGrad off;
  const Tensor a = ones({kSize, kSize});
  const double spent = undisturbed_milliseconds([&] { matmul(a, a); });
  return 2.0 * kSize * kSize * kSize / spent;
}

}  // namespace faultline::cli
