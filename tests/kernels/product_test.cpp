#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/copy.h"
#include "kernels/cpu/product.h"
#include "kernels/kernels.h"
#include "tests/kernels/reference_arguments.h"

namespace faultline {
namespace {
using testing::KernelCall;

template <class T>
constexpr double kRounding = 0x1p-24;  // 2^-p for p bits of significand: one rounding to T
template <>
constexpr double kRounding<bfloat16> = 0x1p-8;
template <>
constexpr double kRounding<float16> = 0x1p-11;

// Where the elements of a matrix lie in memory.
enum class Layout { rows, columns, wide_rows, wide_columns, scattered, repeated_row, negative };
constexpr Layout kLayouts[] = {Layout::rows,         Layout::columns,   Layout::wide_rows,
                               Layout::wide_columns, Layout::scattered, Layout::repeated_row,
                               Layout::negative};

Strides strides_of(Layout layout, int64_t rows, int64_t columns) {
  switch (layout) {
    case Layout::rows:
      return {columns, 1};
    case Layout::columns:
      return {1, rows};
    case Layout::wide_rows:
      return {columns + 5, 1};
    case Layout::wide_columns:
      return {1, rows + 3};
    case Layout::scattered:
      return {2 * columns + 1, 2};
    case Layout::repeated_row:
      return {0, 1};
    case Layout::negative:
      break;
  }
  return {columns, -1};
}

// A matrix of standard normal numbers rounded to T, in that layout.
template <class T>
TensorView random_matrix(KernelCall& call, int64_t rows, int64_t columns, Layout layout,
                         uint64_t stream) {
  const Strides strides = strides_of(layout, rows, columns);
  TensorView view = call.fresh(dtype_of<T>(), {(rows + 3) * (2 * columns + 5) + 16});
  view.shape = {rows, columns};
  view.strides = strides;
  if (layout == Layout::negative) view = moved(view, columns);
  const RandomSequence random(7, stream);
  for (int64_t n = 0; n < rows * columns; ++n) {
    view.as<T>()[offset_of(view, n)] =
        convert<T>(static_cast<float>(random.normal(static_cast<uint64_t>(n))));
  }
  return view;
}

// The elements in row-major order, as double.
std::vector<double> read(const TensorView& view) {
  std::vector<double> values;
  with_type(view.dtype, [&]<class T>() {
    for (int64_t n = 0; n < view.numel(); ++n) {
      values.push_back(convert<double>(view.as<T>()[offset_of(view, n)]));
    }
  });
  return values;
}

// Compares c [m, n] with a b + bias in double. The sum of k f32 products, in any order and with or
// without fused multiply-add, is within k * 2^-24 * sum |a b| of the exact one, to first order; one
// more term covers the bias and the second order, and the result is rounded to its type once.
void expect_product(const TensorView& a_view, const TensorView& b_view, const TensorView& bias_view,
                    const TensorView& c_view, double rounding, const std::string& what) {
  const std::vector<double> a = read(a_view);
  const std::vector<double> b = read(b_view);
  const std::vector<double> c = read(c_view);
  const std::vector<double> bias = bias_view.defined() ? read(bias_view) : std::vector<double>{};
  const auto n = static_cast<size_t>(c_view.shape[1]);
  const auto k = static_cast<size_t>(a_view.shape[1]);
  for (size_t at = 0; at < c.size(); ++at) {
    const size_t i = at / n;
    const size_t j = at % n;
    double exact = bias.empty() ? 0 : bias[j];
    double size = std::abs(exact);
    for (size_t p = 0; p < k; ++p) {
      const double term = a[i * k + p] * b[p * n + j];
      exact += term;
      size += std::abs(term);
    }
    const double terms = static_cast<double>(k) + 1;
    // Below 2^-14 a float16 is subnormal: half its spacing, 2^-25, is the least error.
    const double tolerance = terms * 0x1p-24 * size + rounding * std::abs(exact) + 0x1p-25;
    ASSERT_TRUE(std::abs(c[at] - exact) <= tolerance)
        << what << " at (" << i << ", " << j << "): expected " << exact << " +- " << tolerance
        << ", got " << c[at];
  }
}

struct Size {
  int64_t m, n, k;
};

template <class A, class C>
void check_layouts(const Size& size, Layout a_layout, Layout b_layout, bool with_bias) {
  KernelCall call;
  const TensorView a = random_matrix<A>(call, size.m, size.k, a_layout, 1);
  const TensorView b = random_matrix<A>(call, size.k, size.n, b_layout, 2);
  TensorView bias;
  if (with_bias) {
    bias = random_matrix<C>(call, 1, size.n, Layout::scattered, 3);
    bias.shape = {size.n};
    bias.strides = {bias.strides[1]};
  }
  const TensorView c = call.fresh(dtype_of<C>(), {size.m, size.n});
  cpu::batched_product(a, b, bias, c, 2);
  expect_product(
      a, b, bias, c, kRounding<C>,
      fmt::format("[{}, {}] x [{}, {}] layouts {} {} bias {}", size.m, size.k, size.k, size.n,
                  static_cast<int>(a_layout), static_cast<int>(b_layout), with_bias));
}

template <class T>
class ProductTypes : public ::testing::Test {};
using Types = ::testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(ProductTypes, Types);

TYPED_TEST(ProductTypes, MatchesDoubleForEveryLayout) {
  for (const Layout a : kLayouts) {
    for (const Layout b : kLayouts) {
      for (const Size& size :
           {Size{1, 1, 1}, Size{7, 13, 11}, Size{1, 31, 17}, Size{37, 1, 5}, Size{3, 5, 1}}) {
        check_layouts<TypeParam, TypeParam>(size, a, b, a == Layout::rows);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(ProductTypes, MatchesDoubleAcrossPanelsAndTiles) {
  for (const Size& size :
       {Size{257, 300, 67}, Size{300, 257, 67}, Size{130, 67, 1031}, Size{1037, 70, 66}}) {
    check_layouts<TypeParam, TypeParam>(size, Layout::rows, Layout::columns, true);
    check_layouts<TypeParam, TypeParam>(size, Layout::columns, Layout::rows, false);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(ProductTypes, GivesFloatResultsOfAnyOperands) {
  check_layouts<TypeParam, float>({33, 70, 129}, Layout::rows, Layout::columns, true);
}

TYPED_TEST(ProductTypes, WithoutTermsIsTheBiasOrZero) {
  using T = TypeParam;
  KernelCall call;
  const std::vector<T> bias = {T(1.5F), T(-2.0F), T(0.25F)};
  const auto y = call.in(std::vector<T>{}, {2, 0})
                     .in(std::vector<T>{}, {3, 0})
                     .in(bias, {3})
                     .template out<T>({2, 3})
                     .template run<T>(&cpu::linear);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(static_cast<float>(y[i]), static_cast<float>(bias[i % 3]));
  KernelCall plain;
  const auto zeros = plain.in(std::vector<T>{}, {2, 0})
                         .in(std::vector<T>{}, {0, 3})
                         .template out<T>({2, 3})
                         .template run<T>(&cpu::matmul);
  for (const T& zero : zeros) EXPECT_EQ(static_cast<float>(zero), 0.0F);
}

TYPED_TEST(ProductTypes, OfNothingIsNothing) {
  using T = TypeParam;
  KernelCall call;
  EXPECT_TRUE(call.in(std::vector<T>{}, {0, 4})
                  .in(std::vector<T>(12), {4, 3})
                  .template out<T>({0, 3})
                  .template run<T>(&cpu::matmul)
                  .empty());
}

// 0 * NaN and 0 * infinity are NaN: a product may not skip zeros.
TYPED_TEST(ProductTypes, CarriesNanAndInfinity) {
  using T = TypeParam;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t n : {1, 3, 64}) {
    std::vector<T> a(static_cast<size_t>(5 * 9), T(0.0F));
    std::vector<T> b(static_cast<size_t>(9 * n), T(1.0F));
    a[0 * 9 + 4] = T(kNan);
    a[1 * 9 + 2] = T(kInfinity);
    a[2 * 9 + 2] = T(-kInfinity);
    b[static_cast<size_t>(8 * n)] = T(kInfinity);  // row 3 and 4 of a meet it with 0
    KernelCall call;
    const auto y =
        call.in(a, {5, 9}).in(b, {9, n}).template out<T>({5, n}).template run<T>(&cpu::matmul);
    const auto at = [&](int64_t i, int64_t j) {
      return static_cast<float>(y[static_cast<size_t>(i * n + j)]);
    };
    EXPECT_TRUE(std::isnan(at(0, 0)));
    EXPECT_TRUE(std::isnan(at(0, n - 1)));
    EXPECT_TRUE(std::isnan(at(3, 0)));
    EXPECT_TRUE(std::isnan(at(4, 0)));
    if (n > 1) {
      EXPECT_EQ(at(1, n - 1), kInfinity);
      EXPECT_EQ(at(2, n - 1), -kInfinity);
      EXPECT_EQ(at(3, n - 1), 0.0F);
    }
  }
}

// The bits of a batch of products for 1, 2, 3 and 4 threads and for shifted addresses.
template <class T>
void expect_same_bits(int64_t batch, const Size& size) {
  const auto bits = [&](int threads, int64_t shift) {
    KernelCall call;
    const TensorView a = moved(call.fresh(dtype_of<T>(), {batch * size.m * size.k + shift}), shift);
    const TensorView b = moved(call.fresh(dtype_of<T>(), {batch * size.k * size.n + shift}), shift);
    TensorView c = moved(call.fresh(dtype_of<T>(), {batch * size.m * size.n + shift}), shift);
    const auto fill = [](const TensorView& view, uint64_t stream, int64_t count) {
      const RandomSequence random(3, stream);
      for (int64_t i = 0; i < count; ++i) {
        view.as<T>()[i] = convert<T>(static_cast<float>(random.normal(static_cast<uint64_t>(i))));
      }
    };
    const auto shaped = [&](TensorView view, int64_t rows, int64_t columns) {
      view.shape = {batch, rows, columns};
      view.strides = contiguous_strides(view.shape);
      return view;
    };
    fill(a, 1, batch * size.m * size.k);
    fill(b, 2, batch * size.k * size.n);
    cpu::batched_product(shaped(a, size.m, size.k), shaped(b, size.k, size.n), {},
                         shaped(c, size.m, size.n), threads);
    return std::vector<T>(c.as<T>(), c.as<T>() + batch * size.m * size.n);
  };
  const std::vector<T> one = bits(1, 0);
  for (const auto& [threads, shift] : {std::pair{2, 0}, {3, 1}, {4, 0}, {4, 3}, {1, 1}}) {
    const std::vector<T> other = bits(threads, shift);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(T)), 0)
        << batch << " of [" << size.m << ", " << size.k << "] x [" << size.k << ", " << size.n
        << "], " << threads << " threads, addresses shifted by " << shift;
  }
}

template <class T>
class ThreadsProduct : public ::testing::Test {};
TYPED_TEST_SUITE(ThreadsProduct, Types);

TYPED_TEST(ThreadsProduct, NeverChangeABit) {
  expect_same_bits<TypeParam>(1, {512, 96, 70});
  expect_same_bits<TypeParam>(1, {61, 1021, 130});
  expect_same_bits<TypeParam>(1, {1, 4099, 96});
  expect_same_bits<TypeParam>(3, {130, 65, 64});
  expect_same_bits<TypeParam>(1, {40, 1024, 20});
  expect_same_bits<TypeParam>(17, {32, 32, 16});
}

// A tall product reads its weight through a copy that all threads share.
TEST(ThreadsTallProduct, NeverChangeABit) {
  const Size size = {1100, 70, 66};
  KernelCall call;
  const TensorView a = random_matrix<float>(call, size.m, size.k, Layout::rows, 1);
  const TensorView b = random_matrix<float>(call, size.k, size.n, Layout::columns, 2);
  const auto product = [&](int threads) {
    const TensorView c = call.fresh(DType::f32, {size.m, size.n});
    cpu::batched_product(a, b, {}, c, threads);
    return std::vector<float>(c.as<float>(), c.as<float>() + size.m * size.n);
  };
  const std::vector<float> one = product(1);
  for (const int threads : {2, 3, 4}) {
    EXPECT_EQ(std::memcmp(one.data(), product(threads).data(), one.size() * sizeof(float)), 0)
        << threads << " threads";
  }
}

// Up to four rows are multiplied by reading the matrix once; each in the order of a single row.
TEST(FewRows, HaveTheBitsOfEachRowAloneForAnyThreads) {
  constexpr int64_t kN = 300;
  constexpr int64_t kK = 603;
  KernelCall call;
  const TensorView a = random_matrix<float>(call, 4, kK, Layout::wide_rows, 1);
  const TensorView b = random_matrix<float>(call, kK, kN, Layout::wide_columns, 2);
  const TensorView bias_row = random_matrix<float>(call, 1, kN, Layout::rows, 3);
  TensorView bias = bias_row;
  bias.shape = {kN};
  bias.strides = {1};
  const auto product = [&](int64_t first, int64_t rows, int threads) {
    const TensorView c = call.fresh(DType::f32, {rows, kN});
    cpu::batched_product(slice_of(a, 0, first, rows), b, bias, c, threads);
    expect_product(slice_of(a, 0, first, rows), b, bias, c, 0x1p-24, "few rows");
    return std::vector<float>(c.as<float>(), c.as<float>() + rows * kN);
  };
  const std::vector<float> all = product(0, 4, 1);
  for (const int threads : {2, 3, 4}) EXPECT_EQ(product(0, 4, threads), all) << threads;
  for (int64_t i = 0; i < 4; ++i) {
    const auto begin = all.begin() + i * kN;
    EXPECT_EQ(product(i, 1, 2), std::vector<float>(begin, begin + kN)) << i;
  }
}

TEST(FewRows, MatchDoubleForEveryLayoutAndTail) {
  for (const int64_t m : {1, 2, 4, 5}) {
    for (const Layout a : kLayouts) {
      for (const int64_t k : {1, 15, 16, 63, 64, 65, 130}) {
        check_layouts<float, float>({m, 70, k}, a, Layout::columns, k % 2 == 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Panels, CoverLargeProductsForFourThreads) {
  for (const Size& size :
       {Size{1024, 768, 768}, Size{256, 3072, 768}, Size{1, 50257, 768}, Size{768, 3072, 1024}}) {
    const cpu::Panels panels = cpu::panels_of(1, size.m, size.n, size.k);
    const int64_t count = ((size.m + panels.rows - 1) / panels.rows) *
                          ((size.n + panels.columns - 1) / panels.columns);
    EXPECT_GE(count, 4) << size.m << " x " << size.n;
    EXPECT_LE(count, 16) << size.m << " x " << size.n;
  }
}

TEST(Product, NamesItsLibrary) {
  const std::string name = cpu::product_library();
  EXPECT_TRUE(name.starts_with("oneDNN ") || name.starts_with("Eigen ")) << name;
}

// Attention reads q and k of [B, T, 3, H, D] memory where they lie.
TEST(Matmul, ReadsHeadsOutOfPackedProjections) {
  constexpr int64_t kB = 2, kT = 5, kH = 3, kD = 4;
  KernelCall call;
  const TensorView qkv = random_matrix<float>(call, kB * kT, 3 * kH * kD, Layout::rows, 1);
  const auto heads = [&](int64_t part, bool columns) {
    TensorView view = moved(qkv, part * kH * kD);
    view.shape = columns ? Shape{kB, kH, kD, kT} : Shape{kB, kH, kT, kD};
    const int64_t token = 3 * kH * kD;
    view.strides = columns ? Strides{kT * token, kD, 1, token} : Strides{kT * token, kD, token, 1};
    return view;
  };
  const TensorView q = heads(0, false);
  const TensorView k = heads(1, true);
  const auto scores = call.in(q).in(k).out<float>({kB, kH, kT, kT}).run<float>(&cpu::matmul);
  for (int64_t n = 0; n < kB * kH; ++n) {
    for (int64_t i = 0; i < kT * kT; ++i) {
      double exact = 0;
      for (int64_t d = 0; d < kD; ++d) {
        const int64_t query = n / kH * q.strides[0] + n % kH * q.strides[1] + i / kT * q.strides[2];
        const int64_t key = n / kH * k.strides[0] + n % kH * k.strides[1] + i % kT * k.strides[3];
        exact += static_cast<double>(q.as<float>()[query + d]) * k.as<float>()[key + d];
      }
      // Four terms of size below 9 (three standard deviations squared), each rounded to 2^-24.
      EXPECT_NEAR(scores[static_cast<size_t>(n * kT * kT + i)], exact, 4 * 4 * 9 * 0x1p-24);
    }
  }
}

// Leading dimensions broadcast in either operand; the reference computes the same in double.
TEST(Matmul, BroadcastsLeadingDimensionsLikeTheReference) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3, 5, 7}, {7, 4}},       {{5, 7}, {2, 3, 7, 4}},       {{2, 1, 5, 7}, {3, 7, 4}},
      {{1, 5, 7}, {1, 7, 4}},       {{2, 3, 5, 7}, {2, 3, 7, 4}}, {{5, 7}, {1, 1, 7, 4}},
      {{2, 3, 0, 7}, {1, 3, 7, 4}}, {{2, 5, 0}, {2, 0, 4}}};
  for (const auto& [a_shape, b_shape] : shapes) {
    KernelCall call;
    const auto values = [](const Shape& shape, uint64_t stream) {
      const RandomSequence random(5, stream);
      std::vector<float> result;
      for (int64_t i = 0; i < numel(shape); ++i) {
        result.push_back(static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5));
      }
      return result;
    };
    const auto a = values(a_shape, 1);
    const auto b = values(b_shape, 2);
    Shape leading_a = a_shape.without(a_shape.rank() - 1).without(a_shape.rank() - 2);
    Shape leading_b = b_shape.without(b_shape.rank() - 1).without(b_shape.rank() - 2);
    Shape shape = broadcast(leading_a, leading_b, "test");
    shape.push_back(a_shape[-2]);
    shape.push_back(b_shape[-1]);
    const auto fast =
        KernelCall().in(a, a_shape).in(b, b_shape).out<float>(shape).run<float>(&cpu::matmul);
    const auto exact = KernelCall()
                           .in(std::vector<double>(a.begin(), a.end()), a_shape)
                           .in(std::vector<double>(b.begin(), b.end()), b_shape)
                           .out<double>(shape)
                           .run<double>(&reference::matmul);
    ASSERT_EQ(fast.size(), exact.size());
    // Seven terms of at most 1/4.
    for (size_t i = 0; i < fast.size(); ++i) {
      EXPECT_NEAR(fast[i], exact[i], 7 * 7 * 0.25 * 0x1p-24)
          << to_string(a_shape) << " x " << to_string(b_shape);
    }
  }
}

// Rows that no single stride reaches are copied together first: the same bits as of a copy.
TEST(Linear, TakesRowsThatLieAtSeveralDistances) {
  KernelCall call;
  TensorView x = random_matrix<float>(call, 2 * 3 * 5, 8, Layout::rows, 1);
  x.shape = {2, 5, 3, 8};
  x.strides = {120, 8, 40, 1};
  const TensorView copy = call.fresh(DType::f32, x.shape);
  copy_elements(x, copy, 1);
  const TensorView w = random_matrix<float>(call, 6, 8, Layout::rows, 2);
  const auto linear = [&](const TensorView& input) {
    return KernelCall().in(input).in(w).absent().out<float>({2, 5, 3, 6}).run<float>(&cpu::linear);
  };
  EXPECT_EQ(linear(x), linear(copy));
}

TEST(Product, RefusesOtherTypes) {
  KernelCall call;
  call.in(std::vector<double>(4), {2, 2}).in(std::vector<double>(4), {2, 2}).out<double>({2, 2});
  EXPECT_THROW(call.run<double>(&cpu::matmul), InternalError);
}

}  // namespace
}  // namespace faultline
