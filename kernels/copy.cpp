#include "kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "kernels/kernels.h"

namespace faultline {

void copy_elements(const TensorView& from, const TensorView& to, int threads) {
  KernelArgs args;
  args.inputs[0] = from;
  args.outputs[0] = to;
  args.input_count = 1;
  args.output_count = 1;
  args.threads = threads;
  cpu::cast(args);
}

void zero_elements(const TensorView& to, int threads) {
  if (!to.is_contiguous()) {
    // In every dtype the bits of 0 are zeros.
    alignas(16) std::byte zero[16] = {};
    TensorView source;
    source.data = zero;
    source.dtype = to.dtype;
    return copy_elements(source, to, threads);
  }
  constexpr int64_t kChunk = int64_t{1} << 17;
  const int64_t bytes = to.numel() * static_cast<int64_t>(size_of(to.dtype));
  parallel_for((bytes + kChunk - 1) / kChunk, threads, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk;
    std::memset(to.data + begin, 0, static_cast<size_t>(std::min(kChunk, bytes - begin)));
  });
}

}  // namespace faultline
