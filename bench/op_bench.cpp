#include <benchmark/benchmark.h>

#include "autograd/functional.h"
#include "core/context.h"
#include "optim/optimizer.h"

// Each op alone, forward and, where it has one, backward. Shapes are those of a GPT-2 step of 4 x
// 64 tokens. Bytes are what an op must read and write, so a rate far below the copy bandwidth is a
// kernel to look at.
namespace faultline {
namespace {

constexpr int64_t kRows = 256;
constexpr int64_t kWidth = 768;
constexpr int64_t kVocabulary = 50304;

Tensor random(const Shape& shape, uint64_t stream = 1) { return normal(shape, 0, 1, 1, stream); }

void count(benchmark::State& state, double bytes, double flops = 0) {
  const auto iterations = static_cast<double>(state.iterations());
  state.SetBytesProcessed(static_cast<int64_t>(bytes * iterations));
  if (flops > 0) {
    state.counters["FLOP/s"] = benchmark::Counter(flops * iterations, benchmark::Counter::kIsRate);
  }
}

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) {
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(size_of(tensor.dtype()));
  }
  return bytes;
}

// The cost of an op beyond its arithmetic: validation, shape, allocation, launch. Target: 2 us.
void overhead_add(benchmark::State& state) {
  const NoGrad off;
  const Tensor a = ones({1});
  const Tensor b = ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(overhead_add);

// The same with a node on the tape.
void overhead_add_recorded(benchmark::State& state) {
  const Tensor a = ones({1});
  const Tensor b = ones({1});
  set_requires_grad(a);
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(overhead_add_recorded);

using Unary = Tensor (*)(const Tensor&);

void forward(benchmark::State& state, Unary op, const Shape& shape) {
  const NoGrad off;
  const Tensor x = random(shape);
  for (auto _ : state) benchmark::DoNotOptimize(op(x));
  count(state, 2 * bytes_of({x}));
}

void both_ways(benchmark::State& state, Unary op, const Shape& shape) {
  const Tensor x = random(shape);
  const Tensor dy = random(shape, 2);
  set_requires_grad(x);
  for (auto _ : state) {
    clear_gradient(x);
    backward(op(x), dy);
  }
  count(state, 5 * bytes_of({x}));
}

const Shape kHidden{kRows, 4 * kWidth};
const Shape kScores{4, 12, 64, 64};
Tensor gelu_of(const Tensor& x) { return gelu(x); }
Tensor softmax_of(const Tensor& x) { return softmax(x); }
Tensor add_of(const Tensor& x) { return add(x, x); }
Tensor layer_norm_of(const Tensor& x) { return layer_norm(x, {}, {}); }
BENCHMARK_CAPTURE(forward, add, add_of, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(forward, gelu, gelu_of, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(both_ways, gelu, gelu_of, kHidden)->UseRealTime();
BENCHMARK_CAPTURE(forward, softmax, softmax_of, kScores)->UseRealTime();
BENCHMARK_CAPTURE(both_ways, softmax, softmax_of, kScores)->UseRealTime();
BENCHMARK_CAPTURE(forward, layer_norm, layer_norm_of, Shape{kRows, kWidth})->UseRealTime();
BENCHMARK_CAPTURE(both_ways, layer_norm, layer_norm_of, Shape{kRows, kWidth})->UseRealTime();

// y = x w^T with x [rows, in], w [out, in]; then dx and dw.
void product(benchmark::State& state) {
  const NoGrad off;
  const int64_t rows = state.range(0);
  const int64_t in = state.range(1);
  const int64_t out = state.range(2);
  const Tensor x = random({rows, in});
  const Tensor w = random({out, in}, 2);
  const Tensor dy = random({rows, out}, 3);
  for (auto _ : state) {
    if (state.range(3) == 0) benchmark::DoNotOptimize(linear(x, w));
    if (state.range(3) == 1) benchmark::DoNotOptimize(matmul(dy, w));
    if (state.range(3) == 2) benchmark::DoNotOptimize(matmul(transpose(dy, 0, 1), x));
  }
  count(state, bytes_of({x, w, dy}),
        2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
}
BENCHMARK(product)
    ->ArgNames({"rows", "in", "out", "way"})
    ->ArgsProduct({{kRows}, {kWidth}, {kWidth, 3 * kWidth, 4 * kWidth}, {0, 1, 2}})
    ->Args({kRows, 4 * kWidth, kWidth, 0})
    ->Args({kRows, 4 * kWidth, kWidth, 1})
    ->Args({kRows, 4 * kWidth, kWidth, 2})
    ->Args({kRows, kWidth, kVocabulary, 0})
    ->Args({2048, 128, 512, 0})
    ->Args({128, 32, 128, 0})
    ->UseRealTime();

void attention_scores(benchmark::State& state) {
  const NoGrad off;
  const Tensor q = random({4, 12, 64, 64});
  const Tensor k = random({4, 12, 64, 64}, 2);
  for (auto _ : state) benchmark::DoNotOptimize(matmul(q, transpose(k, -2, -1)));
  count(state, bytes_of({q, k}), 2.0 * 4 * 12 * 64 * 64 * 64);
}
BENCHMARK(attention_scores)->UseRealTime();

void cross_entropy(benchmark::State& state) {
  const Tensor logits = random({kRows, kVocabulary});
  const Tensor labels =
      cast(uniform({kRows}, 0, static_cast<double>(kVocabulary), 1, 2), DType::i32);
  set_requires_grad(logits);
  for (auto _ : state) {
    clear_gradient(logits);
    backward(sum(cross_entropy_rows(logits, labels)));
  }
  count(state, 3 * bytes_of({logits}));
}
BENCHMARK(cross_entropy)->UseRealTime();

void embedding_both_ways(benchmark::State& state) {
  const Tensor weight = random({kVocabulary, kWidth});
  const Tensor ids = cast(uniform({kRows}, 0, static_cast<double>(kVocabulary), 1, 2), DType::i32);
  const Tensor dy = random({kRows, kWidth}, 3);
  set_requires_grad(weight);
  for (auto _ : state) {
    clear_gradient(weight);
    backward(embedding(weight, ids), dy);
  }
  count(state, 4 * bytes_of({dy}) + bytes_of({weight}));
}
BENCHMARK(embedding_both_ways)->UseRealTime();

void adamw(benchmark::State& state) {
  Parameter weight("weight", random({state.range(0)}), Decay::yes);
  backward(sum(weight.value()));
  optim::AdamW optimizer({{{&weight}, 0.1}});
  for (auto _ : state) optimizer.step(1e-6);
  count(state, 7 * bytes_of({weight.value()}));
}
BENCHMARK(adamw)->Arg(1 << 16)->Arg(1 << 24)->UseRealTime();

}  // namespace
}  // namespace faultline

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  faultline::Context context;
  const faultline::ContextGuard guard(context);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
