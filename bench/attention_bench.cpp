#include <benchmark/benchmark.h>

#include <cmath>

#include "autograd/functional.h"
#include "kernels/attributes.h"

// Causal attention, forward and backward: by tiles (flash) and as two products around a softmax
// (math). Rates count the products of the visible scores alone, two forward and five backward, for
// both; math makes four backward, but of all scores.
namespace faultline {
namespace {

struct Sizes {
  int64_t batch, heads, length, width;
};

Tensor by_tiles(const Tensor& q, const Tensor& k, const Tensor& v, const MaskAttributes& mask) {
  return flash_attention(q, k, v, {}, {}, {}, {mask, 0, {}}).y_BHQD;
}

Tensor by_products(const Tensor& q, const Tensor& k, const Tensor& v, const MaskAttributes& mask) {
  return matmul(masked_softmax(matmul(q, transpose(k, -2, -1)), {}, {}, mask), v);
}

template <class Attend>
void attention(benchmark::State& state, const Attend& attend) {
  const Sizes s{state.range(0), state.range(1), state.range(2), state.range(3)};
  const Shape shape{s.batch, s.heads, s.length, s.width};
  const Tensor leaves[] = {normal(shape, 0, 1, 1, 1), normal(shape, 0, 1, 1, 2),
                           normal(shape, 0, 1, 1, 3)};
  const Tensor dy = normal(shape, 0, 1, 1, 4);
  for (const Tensor& leaf : leaves) set_requires_grad(leaf);
  const MaskAttributes causal{.scale = 1 / std::sqrt(static_cast<double>(s.width))};
  for (auto _ : state) {
    for (const Tensor& leaf : leaves) clear_gradient(leaf);
    backward(attend(leaves[0], leaves[1], leaves[2], causal), dy);
  }
  const double visible = 0.5 * static_cast<double>(s.length) * static_cast<double>(s.length + 1);
  const double flops = 7 * 2 * visible * static_cast<double>(s.batch * s.heads * s.width);
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void small_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"batch", "heads", "T", "D"})->UseRealTime()->Unit(benchmark::kMillisecond);
  bench->Args({4, 2, 32, 16})->Args({4, 12, 64, 64})->Args({16, 4, 128, 32});
  for (const int64_t length : {512, 1024, 2048}) bench->Args({1, 12, length, 64});
}
void all_sizes(benchmark::internal::Benchmark* bench) {
  small_sizes(bench);
  bench->Args({1, 12, 4096, 64})->Args({1, 12, 8192, 64});
}

// math at T = 4096 and more would take gigabytes.
BENCHMARK_CAPTURE(attention, flash, by_tiles)->Apply(all_sizes);
BENCHMARK_CAPTURE(attention, math, by_products)->Apply(small_sizes);

}  // namespace
}  // namespace faultline
