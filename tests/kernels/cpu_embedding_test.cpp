#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

Tensor some_ids(const Shape& shape, int64_t rows) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < numel(shape); ++i) ids.push_back(i * i * 31 % rows);
  return tensor(ids, shape);
}

Tensor embedding(const Tensor& weight, const Tensor& ids, int threads = 1) {
  Shape shape = ids.shape();
  shape.push_back(weight.size(1));
  return CpuCall()
      .in(weight)
      .in(ids)
      .out(unwritten(shape, weight.dtype()))
      .threads(threads)
      .run(&cpu::embedding);
}

Tensor backward(const Tensor& dy, const Tensor& ids, int64_t rows, int threads = 1) {
  return CpuCall()
      .in(dy)
      .in(ids)
      .out(unwritten({rows, dy.size(-1)}))
      .threads(threads)
      .run(&cpu::embedding_backward);
}

TEST(CpuEmbedding, PicksRows) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor weight = in_dtype(normal_tensor({301, 77}, 1), dtype);
    const Tensor ids = some_ids({14, 61}, 301);
    const auto id = ids.to_vector<int64_t>();
    const auto w = weight.to_vector<float>();
    for (const int threads : {1, 2, 4}) {
      const auto y = embedding(weight, ids, threads).to_vector<float>();
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(y[i], w[static_cast<size_t>(id[i / 77] * 77) + i % 77]);
      }
    }
  }
}

TEST(CpuEmbedding, ReadsIdsOfAnyLayoutAndWidth) {
  const Tensor weight = normal_tensor({50, 6}, 2);
  const Tensor ids = some_ids({4, 5}, 50);
  const auto wide = ids.to_vector<int64_t>();
  const Tensor narrow = tensor(std::vector<int32_t>(wide.begin(), wide.end()), {4, 5});
  EXPECT_TRUE(same_bits(embedding(weight, narrow), embedding(weight, ids)));
  const Tensor y = embedding(weight, ids.alias({5, 4}, {1, 5}));
  EXPECT_TRUE(same_bits(y.alias({4, 5, 6}, {6, 24, 1}), embedding(weight, ids)));
}

// In f32, in the order of places: the same additions, so the same bits.
TEST(CpuEmbedding, BackwardAddsInTheOrderOfPlaces) {
  const int64_t rows = 1001;
  const Tensor ids = some_ids({3, 500}, rows);
  const Tensor dy = normal_tensor({3, 500, 67}, 3);
  const auto id = ids.to_vector<int64_t>();
  const auto g = dy.to_vector<float>();
  std::vector<float> expected(static_cast<size_t>(rows * 67), 0.0F);
  for (size_t i = 0; i < g.size(); ++i) {
    expected[static_cast<size_t>(id[i / 67] * 67) + i % 67] += g[i];
  }
  for (const int threads : {1, 2, 4}) {
    EXPECT_TRUE(same_bits(backward(dy, ids, rows, threads), tensor(expected, {rows, 67})));
  }
}

TEST(CpuEmbedding, NamesTheIdThatHasNoRow) {
  const Tensor weight = normal_tensor({10, 4}, 4);
  for (const int64_t wrong : {10, -1}) {
    const Tensor ids = tensor<int64_t>({0, 9, wrong}, {3});
    try {
      embedding(weight, ids);
      FAIL() << "accepted " << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("id " + std::to_string(wrong)));
    }
    EXPECT_THROW(backward(normal_tensor({3, 4}, 5), ids, 10), InvalidArgument);
  }
}

// ---- dropout ------------------------------------------------------------------------------------

Tensor dropout(const Tensor& x, const Tensor& key, const DropoutAttributes& attributes,
               int threads = 1) {
  return CpuCall()
      .in(x)
      .in(key)
      .out(unwritten(x.shape(), x.dtype()))
      .with(attributes)
      .threads(threads)
      .run(&cpu::dropout);
}

TEST(CpuDropout, KeepsWhatTheScalarGeneratorKeeps) {
  const int64_t seed = 0x123456789abcdef0;
  const int64_t step = 300000;
  const int64_t first = 77;
  const Tensor key = tensor<int64_t>({seed, step, first}, {3});
  for (const Shape& shape : {Shape{3, 5, 1031}, Shape{4099}, Shape{2, 40000}, Shape{}}) {
    for (const double p : {0.0, 0.1, 0.5, 0.999}) {
      const Tensor x = normal_tensor(shape, 6);
      const auto y = dropout(x, key, {p, 9}).to_vector<float>();
      const auto v = x.to_vector<float>();
      const int64_t length = shape.empty() ? 1 : x.numel() / shape[0];
      const auto scale = static_cast<float>(1 / (1 - p));
      for (int64_t i = 0; i < x.numel(); ++i) {
        const auto word =
            philox({static_cast<uint32_t>(i % length), static_cast<uint32_t>(first + i / length), 9,
                    static_cast<uint32_t>(step)},
                   {0x9abcdef0U, 0x12345678U})[0];
        const float expected = word * 0x1p-32 >= p ? v[static_cast<size_t>(i)] * scale : 0.0F;
        ASSERT_EQ(y[static_cast<size_t>(i)], expected) << i;
      }
    }
  }
}

TEST(CpuDropout, DropsNansWithTheirElement) {
  const Tensor x = tensor(std::vector<float>(1000, std::nanf("")), {1000});
  const auto y = dropout(x, tensor<int64_t>({1, 2, 3}, {3}), {0.5, 0}).to_vector<float>();
  const auto dropped = std::count(y.begin(), y.end(), 0.0F);
  const auto kept = std::count_if(y.begin(), y.end(), [](float v) { return std::isnan(v); });
  EXPECT_EQ(dropped + kept, 1000);
  // Binomial(1000, 1/2): 6 standard deviations are 95.
  EXPECT_NEAR(static_cast<double>(kept), 500, 95);
}

TEST(CpuDropout, LayoutsAndThreadsDoNotChangeABit) {
  const Tensor key = tensor<int64_t>({5, 6, 7}, {3});
  const Tensor x = normal_tensor({97, 11, 67}, 7);
  const Tensor expected = dropout(x, key, {0.3, 1});
  for (const int threads : {2, 4}) {
    EXPECT_TRUE(same_bits(dropout(crossed(x, 0, 2), key, {0.3, 1}, threads), expected));
  }
}

TEST(CpuDropout, ASequenceIsDroppedTheSameInAnyBatch) {
  const Tensor x = normal_tensor({6, 513}, 8);
  const Tensor whole = dropout(x, tensor<int64_t>({5, 6, 10}, {3}), {0.3, 1});
  const Tensor part =
      dropout(x.alias({2, 513}, {513, 1}, 3 * 513), tensor<int64_t>({5, 6, 13}, {3}), {0.3, 1});
  EXPECT_TRUE(same_bits(part, whole.alias({2, 513}, {513, 1}, 3 * 513)));
}

}  // namespace
}  // namespace faultline::test
