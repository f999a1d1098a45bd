#include "nn/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/rng.h"
#include "nn/gpt2.h"
#include "nn/kv_pages.h"
#include "nn/left_padding.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr double kEps = 0x1p-23;
constexpr Gpt2Config kSmall{
    .vocab_size = 64, .seq_len = 16, .num_layers = 2, .num_heads = 2, .hidden_size = 32};
constexpr KvShape kShape{
    .num_layers = 2, .batch = 1, .num_heads = 2, .head_size = 16, .capacity = 16};

// As in gpt2_test.cpp: a dozen products in a row, each over up to 128 terms. Two f32 passes may
// both stray so far from the exact one.
constexpr double kTwoForward = 2 * 12 * 11 * kEps;

std::vector<int32_t> some_tokens(int64_t count, uint64_t seed = 1) {
  const RandomSequence random(seed, stream_of("tokens"));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.below(64, static_cast<uint64_t>(i))));
  }
  return ids;
}

// Logits [1, T, V] of tokens [first, first + count) after what the cache holds.
Tensor forward(Gpt2& model, const std::vector<int32_t>& tokens, int64_t first, int64_t count,
               KvCache* cache) {
  const auto begin = tokens.begin() + first;
  ModelInput input{.tokens_BT = tensor(std::vector<int32_t>(begin, begin + count), {1, count}),
                   .mask = {.query_offset = cache != nullptr ? cache->length() : 0}};
  input.cache = cache;
  return model.forward(input);
}

Tensor random_slots(int64_t T, uint64_t seed, DType dtype = DType::f32) {
  return normal({1, 2, T, 16}, 0, 1, seed, 0, dtype);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

double largest(const Tensor& x) {
  double found = 0;
  for (const double value : x.to_vector<double>()) found = std::max(found, std::abs(value));
  return found;
}

// Logits of a pass over everything, and of a prefill of `prefill` tokens with the rest one by one.
void expect_equivalent(KvCache& cache, int64_t prefill) {
  const NoGrad off;
  Gpt2 model(kSmall, 5);
  const auto tokens = some_tokens(16);
  const Tensor whole = forward(model, tokens, 0, 16, nullptr);
  std::vector<Tensor> parts{forward(model, tokens, 0, prefill, &cache)};
  for (int64_t t = prefill; t < 16; ++t) parts.push_back(forward(model, tokens, t, 1, &cache));
  EXPECT_EQ(cache.length(), 16);
  Tensor joined = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const Tensor two[] = {joined, parts[i]};
    joined = cat(two, 1);
  }
  EXPECT_TRUE(test::close(joined, whole, {.absolute = kTwoForward * largest(whole)}));
}

TEST(KvCache, PrefillAndDecodeGiveTheLogitsOfOnePass) {
  for (const int64_t prefill : {1, 7, 15}) {
    ContiguousKvCache contiguous(kShape, DType::f32, Unwritten::nan);
    expect_equivalent(contiguous, prefill);
    const PageShape page{2, 2, 16, /*slots=*/4};
    PagedKvCache paged(std::make_shared<PagePool>(page, 4, 4, Unwritten::nan), kShape, DType::f32,
                       {}, PageChecks::every_read);
    expect_equivalent(paged, prefill);
  }
}

TEST(KvCache, GivesRowsPositionsOfTheirOwn) {
  const LeftPadding padding({3, 1, 5});
  EXPECT_EQ(padding.slots(), 5);
  EXPECT_EQ(padding.pads(), (std::vector<int64_t>{2, 4, 0}));
  EXPECT_EQ(padding.positions(0, 5).to_vector<int32_t>(),
            (std::vector<int32_t>{0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(padding.positions(5, 1).to_vector<int32_t>(), (std::vector<int32_t>{3, 1, 5}));
  EXPECT_EQ(padding.key_valid(6).to_vector<int32_t>(),
            (std::vector<int32_t>{0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_FALSE(LeftPadding({4, 4}).key_valid(4).defined());
  EXPECT_THROW(LeftPadding({4, 0}), InvalidArgument);
}

// A row of a padded batch decodes as it does alone: positions and keys of its own.
TEST(KvCache, PaddedRowsAreThoseOfTheRowAlone) {
  const NoGrad off;
  Gpt2 model(kSmall, 5);
  const LeftPadding padding({3, 6});
  KvShape shape = kShape;
  shape.batch = 2;
  const PageShape page{2, 2, 16, /*slots=*/4};
  std::vector<std::unique_ptr<KvCache>> caches;
  caches.push_back(std::make_unique<ContiguousKvCache>(shape, DType::f32, Unwritten::nan));
  caches.push_back(std::make_unique<PagedKvCache>(
      std::make_shared<PagePool>(page, 8, 4, Unwritten::nan), shape, DType::f32, padding.pads()));
  const auto tokens = some_tokens(9);
  std::vector<int32_t> batch(18, 63);  // row 0 is tokens 3 to 8 and two more, behind padding
  for (size_t t = 0; t < 9; ++t) batch[9 + t] = tokens[t];
  for (size_t t = 0; t < 6; ++t) batch[3 + t] = tokens[3 + t];
  const Tensor batch_BT = tensor(batch, {2, 9});
  ContiguousKvCache alone(kShape);
  const Tensor expected = forward(model, {tokens.begin() + 3, tokens.end()}, 0, 6, &alone);
  for (const auto& cache : caches) {
    std::vector<Tensor> parts;
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 6}, {6, 7}, {7, 9}}) {
      ModelInput input{.tokens_BT = slice(batch_BT, 1, first, end), .mask = {}};
      input.mask.query_offset = first;
      input.mask.key_valid = padding.key_valid(end);
      input.positions_BT = padding.positions(first, end - first);
      input.cache = cache.get();
      parts.push_back(slice(model.forward(input), 0, 0, 1));
    }
    const Tensor row = slice(cat(parts, 1), 1, 3, 9);
    EXPECT_TRUE(
        test::close(contiguous(row), expected, {.absolute = kTwoForward * largest(expected)}));
  }
}

TEST(ContiguousKvCache, GivesViewsOfItsMemoryAndNothingUnwritten) {
  const NoGrad off;
  ContiguousKvCache cache(kShape, DType::f32, Unwritten::nan);
  const Tensor k = random_slots(3, 1);
  const auto all = cache.append(0, k, random_slots(3, 2));
  EXPECT_TRUE(test::same_bits(contiguous(all.k_BGKD), k));
  cache.append(1, k, k);
  const auto later = cache.append(0, random_slots(1, 3), random_slots(1, 4));
  EXPECT_TRUE(later.k_BGKD.same_storage(all.k_BGKD));
  EXPECT_EQ(later.k_BGKD.size(2), 4);
  EXPECT_TRUE(all_finite(later.k_BGKD));
  EXPECT_TRUE(all_finite(later.v_BGKD));
  // The slot behind them is the canary.
  const Tensor beyond = later.k_BGKD.alias({1, 2, 5, 16}, later.k_BGKD.strides());
  EXPECT_FALSE(all_finite(slice(beyond, 2, 4, 5)));
}

// Rounded once, to nearest even, and widened again without loss.
TEST(KvCache, StoresRoundedValuesAndGivesThemBackAsTheyWereGiven) {
  const NoGrad off;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const PageShape page{2, 2, 16, /*slots=*/4};
    ContiguousKvCache one(kShape, dtype);
    PagedKvCache other(std::make_shared<PagePool>(page, 4, 2), kShape, dtype);
    const Tensor k = random_slots(6, 1);
    const Tensor v = random_slots(6, 2);
    for (StoredKvCache* cache :
         {static_cast<StoredKvCache*>(&one), static_cast<StoredKvCache*>(&other)}) {
      const auto all = cache->append(0, k, v);
      EXPECT_TRUE(test::same_bits(contiguous(all.k_BGKD), cast(cast(k, dtype), DType::f32)));
      EXPECT_TRUE(test::same_bits(contiguous(all.v_BGKD), cast(cast(v, dtype), DType::f32)));
    }
  }
}

// 16 keys of 8 from x = 1664525 x + 1013904223 mod 2^32, seed 1; one query, everything else in f64.
// The largest error of the result is known for each dtype, to the digits given.
TEST(KvCache, RoundingCostsWhatItsDtypeSays) {
  const NoGrad off;
  uint32_t x = 1;
  const auto draw = [&x](int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      x = 1664525 * x + 1013904223;
      values.push_back(static_cast<float>(static_cast<double>(x) / 0x1p31 - 1));
    }
    return values;
  };
  const auto q = draw(8);
  const auto k = draw(128);
  const auto v = draw(128);
  const KvShape shape{.num_layers = 1, .batch = 1, .num_heads = 1, .head_size = 8, .capacity = 16};
  const auto attend = [&](DType dtype) {
    ContiguousKvCache cache(shape, dtype);
    const auto all = cache.append(0, tensor(k, {1, 1, 16, 8}), tensor(v, {1, 1, 16, 8}));
    const auto keys = all.k_BGKD.to_vector<double>();
    const auto values = all.v_BGKD.to_vector<double>();
    std::vector<double> out(8, 0);
    double total = 0;
    for (size_t j = 0; j < 16; ++j) {
      double score = 0;
      for (size_t d = 0; d < 8; ++d) score += static_cast<double>(q[d]) * keys[8 * j + d];
      const double weight = std::exp(score / std::sqrt(8.0));
      total += weight;
      for (size_t d = 0; d < 8; ++d) out[d] += weight * values[8 * j + d];
    }
    for (double& value : out) value /= total;
    return out;
  };
  const auto exact = attend(DType::f32);
  EXPECT_NEAR(exact[0], -0.083990, 5e-7);
  EXPECT_NEAR(exact[1], 0.065510, 5e-7);
  EXPECT_NEAR(exact[2], -0.040230, 5e-7);
  const auto error = [&](DType dtype) {
    const auto rounded = attend(dtype);
    double most = 0;
    for (size_t d = 0; d < 8; ++d) most = std::max(most, std::abs(rounded[d] - exact[d]));
    return most;
  };
  EXPECT_NEAR(error(DType::f16), 6.45e-5, 5e-8);
  EXPECT_NEAR(error(DType::bf16), 3.24e-4, 5e-7);
}

TEST(KvCache, RefusesAValueThatF16CannotHold) {
  const NoGrad off;
  ContiguousKvCache cache(kShape, DType::f16);
  const Tensor large = full({1, 2, 1, 16}, 70000);
  const Tensor small = full({1, 2, 1, 16}, 65504);
  EXPECT_THROW(cache.append(0, small, large), InvalidArgument);
  EXPECT_NO_THROW(cache.append(0, small, small));
  ContiguousKvCache wide(kShape, DType::bf16);
  EXPECT_EQ(wide.append(0, large, large).k_BGKD.to_vector<double>()[0], 70144);
}

TEST(KvCache, RefusesWhatDoesNotFit) {
  const NoGrad off;
  ContiguousKvCache cache(kShape);
  const auto append = [&](int64_t layer, const Tensor& k, const Tensor& v) {
    return error_of([&] { cache.append(layer, k, v); });
  };
  const auto names = [](const std::string& error, const char* what) {
    return error.find(what) != std::string::npos;
  };
  EXPECT_PRED2(names, append(1, random_slots(1, 1), random_slots(1, 1)), "layer 0 of 2 is due");
  EXPECT_PRED2(names, append(0, random_slots(17, 1), random_slots(17, 1)),
               "17 more are needed, of 16");
  EXPECT_PRED2(names, append(0, random_slots(2, 1), random_slots(1, 1)), "f32[1, 2, 1, 16]");
  EXPECT_PRED2(names, append(0, random_slots(1, 1), random_slots(1, 1, DType::bf16)),
               "values bf16");
  EXPECT_PRED2(names, append(0, zeros({1, 4, 1, 16}), zeros({1, 4, 1, 16})), "[1, 2, slots, 16]");
  cache.append(0, random_slots(2, 1), random_slots(2, 1));
  EXPECT_PRED2(names, append(1, random_slots(1, 1), random_slots(1, 1)),
               "layer 0 appended 2 of f32");
  EXPECT_PRED2(names, append(1, random_slots(2, 1, DType::f16), random_slots(2, 1, DType::f16)),
               "2 positions of f16");
  cache.append(1, random_slots(2, 1), random_slots(2, 1));
  EXPECT_PRED2(names, append(1, random_slots(2, 1), random_slots(2, 1)), "layer 0 of 2 is due");
  EXPECT_THROW(ContiguousKvCache(kShape, DType::i32), InvalidArgument);
}

// A recomputed layer would append once more: facts A7, where 3 positions become 6.
TEST(KvCache, RefusesToStoreWhileGradientsAreOn) {
  ContiguousKvCache cache(kShape);
  EXPECT_THROW(cache.append(0, random_slots(1, 1), random_slots(1, 1)), InvalidArgument);
  EXPECT_EQ(cache.length(), 0);
}

TEST(KvCache, ForgetsAPassThatWasCutShortAndWhatIsTruncated) {
  const NoGrad off;
  ContiguousKvCache cache(kShape, DType::f32, Unwritten::nan);
  cache.append(0, random_slots(2, 1), random_slots(2, 1));
  EXPECT_EQ(cache.length(), 0);
  const Tensor k = random_slots(3, 7);
  EXPECT_TRUE(test::same_bits(contiguous(cache.append(0, k, k).k_BGKD), k));
  cache.append(1, k, k);
  EXPECT_EQ(cache.length(), 3);
  cache.truncate(1);
  const auto all = cache.append(0, random_slots(1, 9), random_slots(1, 9));
  EXPECT_EQ(all.k_BGKD.size(2), 2);
  EXPECT_TRUE(
      test::same_bits(contiguous(slice(all.k_BGKD, 2, 0, 1)), contiguous(slice(k, 2, 0, 1))));
  EXPECT_THROW(cache.truncate(2), InvalidArgument);
}

}  // namespace
}  // namespace faultline::nn
