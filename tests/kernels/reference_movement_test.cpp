#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/attributes.h"
#include "kernels/copy.h"
#include "kernels/kernels.h"
#include "tests/kernels/reference_arguments.h"

namespace faultline {
namespace {
using testing::KernelCall;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Longs = std::vector<int64_t>;

// What the error of `call` must say: the value and the limit.
template <class Call>
void expect_invalid(const Call& call, const std::vector<std::string>& parts) {
  try {
    call();
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Copy, TakesEveryPairOfTypes) {
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      KernelCall call;
      const TensorView source = call.fresh(static_cast<DType>(from), {3});
      const TensorView target = call.fresh(static_cast<DType>(to), {3});
      copy_elements(call.view_of(Doubles{0, 1, 1}, {3}), source, 1);
      copy_elements(source, target, 1);
      const TensorView back = call.fresh(DType::f64, {3});
      copy_elements(target, back, 1);
      EXPECT_EQ(call.out(back).result<double>(0), (Doubles{0, 1, 1}))
          << name(static_cast<DType>(from)) << " to " << name(static_cast<DType>(to));
    }
  }
}

TEST(Copy, TakesEveryLayout) {
  Floats values(2 * 3 * 4);
  std::iota(values.begin(), values.end(), 0.0F);
  KernelCall call;
  TensorView view = call.view_of(values, {2, 3, 4});
  view.shape = {4, 2, 3};
  view.strides = {1, 12, 4};
  const auto copy = KernelCall().in(view).out<float>({4, 2, 3}).run<float>(&kernels::run_copy);
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t from = i / 6 + i / 3 % 2 * 12 + i % 3 * 4;
    EXPECT_EQ(copy[static_cast<size_t>(i)], static_cast<float>(from));
  }
  // And back into the layout that it came from.
  KernelCall back;
  TensorView target = back.fresh(DType::f32, {24});
  TensorView permuted = target;
  permuted.shape = view.shape;
  permuted.strides = view.strides;
  copy_elements(back.view_of(copy, {4, 2, 3}), permuted, 1);
  EXPECT_EQ(back.out(target).result<float>(0), values);
}

TEST(Copy, WithManyThreadsMovesEachElement) {
  constexpr int64_t kRows = 5, kColumns = 40001;  // neither fits the chunks
  std::vector<int32_t> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0);
  KernelCall call;
  TensorView matrix = call.view_of(values, {kRows, kColumns});
  for (const TensorView& view : {matrix, transposed(matrix)}) {
    KernelCall run;
    run.in(view).out<int32_t>(view.shape).threads(4);
    const auto copy = run.run<int32_t>(&kernels::run_copy);
    for (size_t n = 0; n < copy.size(); ++n) {
      ASSERT_EQ(copy[n], offset_of(view, static_cast<int64_t>(n)));
    }
  }
}

TEST(ReferenceMovement, SliceBackwardPutsTheGradientBetweenZeros) {
  KernelCall call;
  const auto dx = call.in(Floats{1, 2, 3, 4}, {2, 2})
                      .out<float>({2, 5})
                      .with(SliceAttributes{.dim = 1, .begin = 2})
                      .run<float>(&reference::slice_backward);
  EXPECT_EQ(dx, (Floats{0, 0, 1, 2, 0, 0, 0, 3, 4, 0}));
}

TEST(ReferenceMovement, CatPutsInputsBehindEachOther) {
  EXPECT_EQ(KernelCall()
                .in(Longs{1, 2}, {2, 1})
                .in(Longs{}, {2, 0})
                .in(Longs{3, 4, 5, 6}, {2, 2})
                .out<int64_t>({2, 3})
                .with(DimAttributes{1})
                .run<int64_t>(&reference::cat),
            (Longs{1, 3, 4, 2, 5, 6}));
}

TEST(ReferenceMovement, IndexSelectAndItsTranspose) {
  const Doubles x = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(KernelCall()
                .in(x, {2, 3})
                .in(Longs{2, 0, 2, 2}, {4})
                .out<double>({2, 4})
                .with(DimAttributes{1})
                .run<double>(&reference::index_select),
            (Doubles{3, 1, 3, 3, 6, 4, 6, 6}));
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 4, 8, 10, 20, 40, 80}, {2, 4})
                .in(Longs{2, 0, 2, 2}, {4})
                .out<double>({2, 3})
                .with(DimAttributes{1})
                .run<double>(&reference::index_select_backward),
            (Doubles{2, 0, 13, 20, 0, 130}));
  expect_invalid(
      [&] {
        KernelCall()
            .in(x, {2, 3})
            .in(Longs{0, 3}, {2})
            .out<double>({2, 2})
            .with(DimAttributes{1})
            .run<double>(&reference::index_select);
      },
      {"index_select", "index 3", "position 1", "[0, 3)"});
}

TEST(ReferenceMovement, EmbeddingAndItsTranspose) {
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 3, 4, 5, 6}, {3, 2})
                .in(std::vector<int32_t>{2, 0, 2}, {3, 1})
                .out<double>({3, 1, 2})
                .run<double>(&reference::embedding),
            (Doubles{5, 6, 1, 2, 5, 6}));
  EXPECT_EQ(KernelCall()
                .in(Doubles{1, 2, 3, 4, 5, 6}, {3, 1, 2})
                .in(std::vector<int32_t>{2, 0, 2}, {3, 1})
                .out<double>({3, 2})
                .run<double>(&reference::embedding_backward),
            (Doubles{3, 4, 0, 0, 6, 8}));
  expect_invalid(
      [&] {
        KernelCall()
            .in(Doubles(6), {3, 2})
            .in(Longs{-1}, {1})
            .out<double>({1, 2})
            .run<double>(&reference::embedding);
      },
      {"embedding", "index -1", "[0, 3)"});
}

// 1024 additions of 2^-10 in bf16 would stop at 2^-2 = 256 * 2^-10; the reference adds in double.
TEST(ReferenceMovement, EmbeddingGradientIsRoundedOnce) {
  const std::vector<bfloat16> dy(1024, bfloat16(0x1p-10F));
  const auto sum = KernelCall()
                       .in(dy, {1024, 1})
                       .in(Longs(1024, 0), {1024})
                       .out<bfloat16>({1, 1})
                       .run<bfloat16>(&reference::embedding_backward);
  EXPECT_EQ(static_cast<float>(sum[0]), 1.0F);
}

TEST(ReferenceMovement, DropoutIsAddressedBySequence) {
  const DropoutAttributes drop{.p = 0.25, .layer = 3};
  const auto run = [&](int64_t first, int64_t sequences) {
    return KernelCall()
        .in(Doubles(static_cast<size_t>(sequences * 1000), 3.0), {sequences, 10, 100})
        .in(Longs{(int64_t{5} << 32) + 7, 9, first}, {3})
        .out<double>({sequences, 10, 100})
        .with(drop)
        .run<double>(&reference::dropout);
  };
  const Doubles both = run(40, 2);
  int kept = 0;
  for (size_t i = 0; i < both.size(); ++i) {
    const auto word = philox(
        {static_cast<uint32_t>(i % 1000), 40 + static_cast<uint32_t>(i / 1000), 3, 9}, {7, 5})[0];
    ASSERT_EQ(both[i], word * 0x1p-32 >= 0.25 ? 4.0 : 0.0) << i;
    kept += both[i] != 0;
  }
  // 2,000 draws with probability 3/4: mean 1,500, standard deviation 19.4; five of them.
  EXPECT_NEAR(kept, 1500, 97);
  const Doubles second = run(41, 1);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), both.begin() + 1000));
}

TEST(Launches, FillWritesTheValueInAnyTypeAndLayout) {
  const Attributes value = FillAttributes{-1.5};
  KernelCall call;
  EXPECT_EQ(call.out<double>({3}).with(value).run<double>(&kernels::run_fill),
            (Doubles{-1.5, -1.5, -1.5}));
  KernelCall strided;
  const TensorView memory = strided.view_of(Floats{1, 2, 3, 4}, {4});
  TensorView every_second = memory;
  every_second.shape = {2};
  every_second.strides = {2};
  strided.out(every_second).with(FillAttributes{0}).run<float>(&kernels::run_fill);
  EXPECT_EQ(KernelCall().out(memory).result<float>(0), (Floats{0, 2, 0, 4}));
  // -0 is not a run of zero bytes.
  EXPECT_TRUE(std::signbit(
      KernelCall().out<float>({1}).with(FillAttributes{-0.0}).run<float>(&kernels::run_fill)[0]));
}

TEST(Launches, ArangeCounts) {
  EXPECT_EQ(KernelCall()
                .out<int64_t>({4})
                .with(ArangeAttributes{.start = 5, .step = -2})
                .run<int64_t>(&kernels::run_arange),
            (Longs{5, 3, 1, -1}));
}

TEST(Launches, RandomElementsComeFromTheirPlaceInTheSequence) {
  const RandomAttributes random{.seed = 3, .stream = 4, .offset = 10, .scale = 2};
  const RandomSequence sequence(3, 4);
  for (const int threads : {1, 4}) {
    KernelCall normal;
    const auto n = normal.out<double>({7, 5003}).with(random).threads(threads).run<double>(
        &kernels::run_random_normal);
    KernelCall uniform;
    const auto u = uniform.out<double>({7, 5003}).with(random).threads(threads).run<double>(
        &kernels::run_random_uniform);
    for (size_t i = 0; i < n.size(); ++i) {
      ASSERT_EQ(n[i], 10 + 2 * sequence.normal(i));
      ASSERT_EQ(u[i], 10 + 2 * sequence.uniform(i));
    }
  }
}

TEST(Launches, CounterSaturates) {
  KernelCall call;
  const TensorView counter = call.view_of(Longs{std::numeric_limits<int64_t>::max() - 1}, {1});
  call.out(counter);
  EXPECT_EQ(call.run<int64_t>(&kernels::run_advance_counter)[0],
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(call.run<int64_t>(&kernels::run_advance_counter)[0],
            std::numeric_limits<int64_t>::max());
}

TEST(Launches, BiasCorrectionsReadACounterOfAnyType) {
  const BiasCorrectionAttributes betas{.beta1 = 0.5, .beta2 = 0.75};
  EXPECT_EQ(KernelCall()
                .in(Longs{3}, {1})
                .out<double>({2})
                .with(betas)
                .run<double>(&kernels::run_bias_corrections),
            (Doubles{0.875, 0.578125}));
  EXPECT_EQ(KernelCall()
                .in(std::vector<bfloat16>{bfloat16(2.0F)}, {1})
                .out<double>({2})
                .with(betas)
                .run<double>(&kernels::run_bias_corrections),
            (Doubles{0.75, 0.4375}));
  for (const int64_t t : {0, -4}) {
    expect_invalid(
        [&] {
          KernelCall()
              .in(Longs{t}, {1})
              .out<double>({2})
              .with(betas)
              .run<double>(&kernels::run_bias_corrections);
        },
        {"step counter", std::to_string(t)});
  }
}

TEST(Launches, ClipFactorNeverHidesAnInfiniteNorm) {
  const auto clip = [](double sum_of_squares) {
    KernelCall call;
    call.in(Doubles{sum_of_squares}, {1})
        .out<double>({1})
        .out<double>({1})
        .with(ClipAttributes{.max_norm = 2})
        .run<double>(&kernels::run_clip_factor);
    return std::pair(call.result<double>(0)[0], call.result<double>(1)[0]);
  };
  EXPECT_EQ(clip(16), std::pair(4.0, 0.5));
  EXPECT_EQ(clip(1), std::pair(1.0, 1.0));
  EXPECT_EQ(clip(0), std::pair(0.0, 1.0));
  EXPECT_TRUE(std::isnan(clip(std::numeric_limits<double>::infinity()).second));
  EXPECT_TRUE(std::isnan(clip(std::numeric_limits<double>::quiet_NaN()).second));
}

}  // namespace
}  // namespace faultline
