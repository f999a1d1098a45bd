#include "cli/ideal_step.h"

#include <algorithm>
#include <numeric>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/threads.h"

namespace faultline::cli {
namespace {

// Copies of more than this run at the same bandwidth.
constexpr double kLargestCopy = 256e6;

std::string layout_of(const TensorView& view) {
  return fmt::format("{}{}{}", name(view.dtype), to_string(view.shape), to_string(view.strides));
}

// A view of the same layout over memory of its own, which `owners` keeps.
TensorView scratch(const TensorView& view, std::vector<Tensor>& owners) {
  if (!view.defined()) return view;
  const ByteRange range = byte_range(view);
  const auto elements = (range.end - range.begin) / static_cast<ptrdiff_t>(size_of(view.dtype));
  owners.push_back(normal({elements}, 0, 1, 1, owners.size(), view.dtype));
  TensorView own = view;
  own.data = owners.back().view().data + (view.data - range.begin);
  return own;
}

}  // namespace

double undisturbed_milliseconds(const std::function<void()>& body) {
  return undisturbed(timed_runs(body));
}

void ProductRecorder::record(const Stream&, const Launch& launch) {
  const std::string op = launch.label.op;
  if (op != "matmul" && op != "linear") return;
  std::string key = op;
  for (int i = 0; i < launch.args.input_count; ++i) key += " " + layout_of(launch.args.inputs[i]);
  Product& product = products_[key];
  product.kernel = launch.kernel;
  product.args = launch.args;
  ++product.count;
}

double ProductRecorder::milliseconds() const {
  double total = 0;
  for (const auto& [key, product] : products_) {
    std::vector<Tensor> owners;
    KernelArgs args = product.args;
    for (int i = 0; i < args.input_count; ++i) args.inputs[i] = scratch(args.inputs[i], owners);
    for (int i = 0; i < args.output_count; ++i) args.outputs[i] = scratch(args.outputs[i], owners);
    const Kernel run = product.kernel->run;
    const double once = undisturbed_milliseconds([run, &args] { run(args); });
    total += once * static_cast<double>(product.count);
  }
  return total;
}

double copy_milliseconds(double bytes) {
  const double moved = std::min(bytes, kLargestCopy);
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(moved / 2 / sizeof(float)));
  const Tensor from = ones({count});
  const Tensor to = zeros({count});
  Context& context = Context::current();
  const int thread_counts[] = {1, context.threads};
  const auto copy = [&](int threads) {
    const Scoped<int> use(context.threads, threads);
    copy_(to, from);
  };
  return undisturbed_milliseconds(copy, thread_counts) * bytes / moved;
}

double read_milliseconds(double bytes) {
  constexpr int64_t kBlock = 1 << 16;
  const int64_t blocks = std::max<int64_t>(1, static_cast<int64_t>(bytes / 8) / kBlock);
  // Written once, so that every page is memory of its own.
  const std::vector<uint64_t> words(static_cast<size_t>(blocks * kBlock), 1);
  std::vector<uint64_t> sums(static_cast<size_t>(blocks));
  const double ms = undisturbed_milliseconds([&] {
    parallel_for(blocks, Context::current().threads, [&](int64_t block) {
      const uint64_t* from = words.data() + block * kBlock;
      uint64_t parts[8] = {};
      for (int64_t i = 0; i < kBlock; i += 8) {
        for (int64_t j = 0; j < 8; ++j) parts[j] += from[i + j];
      }
      sums[static_cast<size_t>(block)] = std::accumulate(parts, parts + 8, uint64_t{0});
    });
  });
  const auto total = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  invariant(total == words.size(), "bench: read {} words of {}", total, words.size());
  return ms * bytes / static_cast<double>(words.size() * sizeof(uint64_t));
}

}  // namespace faultline::cli
