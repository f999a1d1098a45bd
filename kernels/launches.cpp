// Launches that are not ops: filling and copying memory, counters and factors of the optimizer.
// The multi-tensor launches are in kernels/cpu.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "core/threads.h"
#include "kernels/attributes.h"
#include "kernels/copy.h"
#include "kernels/kernels.h"
#include "kernels/layout.h"

namespace faultline::kernels {

namespace {
constexpr int64_t kChunk = int64_t{1} << 14;

// outputs[0][i] = value(i), i counted in row-major order; `value` gives a double.
template <class Value>
void generate(const KernelArgs& args, const Value& value) {
  const TensorView& out = args.outputs[0];
  const int64_t count = out.numel();
  const bool contiguous = out.is_contiguous();
  with_type(out.dtype, [&]<class T>() {
    T* data = out.as<T>();
    parallel_for((count + kChunk - 1) / kChunk, args.threads, [&](int64_t chunk) {
      const int64_t end = std::min(count, (chunk + 1) * kChunk);
      for (int64_t i = chunk * kChunk; i < end; ++i) {
        data[contiguous ? i : offset_of(out, i)] = convert<T>(value(i));
      }
    });
  });
}
}  // namespace

void run_fill(const KernelArgs& args) {
  const double value = args.attributes.as<FillAttributes>().value;
  if (value == 0 && !std::signbit(value)) return zero_elements(args.outputs[0], args.threads);
  generate(args, [value](int64_t) { return value; });
}

void run_copy(const KernelArgs& args) {
  copy_elements(args.inputs[0], args.outputs[0], args.threads);
}

void run_arange(const KernelArgs& args) {
  const auto range = args.attributes.as<ArangeAttributes>();
  generate(args, [&](int64_t i) { return range.start + static_cast<double>(i) * range.step; });
}

void run_random_normal(const KernelArgs& args) {
  const auto random = args.attributes.as<RandomAttributes>();
  const RandomSequence sequence(random.seed, random.stream);
  generate(args, [&](int64_t i) {
    return random.offset + random.scale * sequence.normal(static_cast<uint64_t>(i));
  });
}

void run_random_uniform(const KernelArgs& args) {
  const auto random = args.attributes.as<RandomAttributes>();
  const RandomSequence sequence(random.seed, random.stream);
  generate(args, [&](int64_t i) {
    return random.offset + random.scale * sequence.uniform(static_cast<uint64_t>(i));
  });
}

void run_observe(const KernelArgs&) {}

void run_advance_counter(const KernelArgs& args) {
  int64_t& counter = *args.outputs[0].as<int64_t>();
  if (counter != std::numeric_limits<int64_t>::max()) ++counter;
}

// 1 - beta^t, as in Adam (Kingma and Ba, 2015, algorithm 1). The power is taken anew each time: a
// running product drifts.
void run_bias_corrections(const KernelArgs& args) {
  const auto betas = args.attributes.as<BiasCorrectionAttributes>();
  const TensorView& counter = args.inputs[0];
  const double t =
      with_type(counter.dtype, [&]<class T>() { return convert<double>(*counter.as<T>()); });
  require(t > 0,
          "adamw: the step counter reads {}; the bias correction needs at least 1. Advance "
          "the counter before the update",
          t);
  double* corrections = args.outputs[0].as<double>();
  corrections[0] = 1 - std::pow(betas.beta1, t);
  corrections[1] = 1 - std::pow(betas.beta2, t);
}

// A norm that is not finite gives a factor that is NaN, so that nothing hides it: scaling by
// max_norm / infinity = 0 would.
void run_clip_factor(const KernelArgs& args) {
  const double max_norm = args.attributes.as<ClipAttributes>().max_norm;
  const double norm = std::sqrt(*args.inputs[0].as<double>());
  *args.outputs[0].as<double>() = norm;
  *args.outputs[1].as<double>() = std::isfinite(norm) ? std::min(1.0, max_norm / norm)
                                                      : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace faultline::kernels
