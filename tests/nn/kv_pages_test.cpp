#include "nn/kv_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/functional.h"
#include "core/context.h"
#include "nn/prefix_cache.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr PageShape kPage{.num_layers = 2, .num_heads = 1, .head_size = 4, .slots = 2};
constexpr KvShape kShape{
    .num_layers = 2, .batch = 1, .num_heads = 1, .head_size = 4, .capacity = 12};

std::shared_ptr<PagePool> pool_of(int64_t pages, size_t element_bytes = 4) {
  return std::make_shared<PagePool>(kPage, pages, element_bytes, Unwritten::nan);
}

Tensor slots(double value, int64_t T, int64_t batch = 1) { return full({batch, 1, T, 4}, value); }

// One pass that stores T slots of this value in both layers.
void store(KvCache& cache, double value, int64_t T) {
  cache.append(0, slots(value, T), slots(-value, T));
  cache.append(1, slots(10 * value, T), slots(-10 * value, T));
}

// The first number of each slot of the keys of a layer, with one more slot of 0.
std::vector<double> keys(KvCache& cache, int64_t layer = 0) {
  std::vector<double> found;
  for (int64_t l = 0; l < 2; ++l) {
    const auto all = cache.append(l, slots(0, 1), slots(0, 1));
    if (l == layer) found = slice(all.k_BGKD, 3, 0, 1).to_vector<double>();
  }
  return found;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

bool names(const std::string& error, const std::string& what) {
  return error.find(what) != std::string::npos;
}

TEST(KvPages, AreTakenAsSlotsFillAndComeBackForReuse) {
  const NoGrad off;
  const auto pool = pool_of(3);
  {
    PagedKvCache cache(pool, kShape, DType::f32);
    store(cache, 1, 3);
    EXPECT_EQ(cache.pages(0).size(), 2U);
    store(cache, 2, 1);
    EXPECT_EQ(cache.pages(0).size(), 2U);
    EXPECT_EQ(keys(cache, 1), (std::vector<double>{10, 10, 10, 20, 0}));
    EXPECT_EQ(pool->free_pages(), 0);
    EXPECT_EQ(cache.bytes(), 3 * pool->page_bytes());
    cache.truncate(2);
    EXPECT_EQ(pool->free_pages(), 2);
  }
  EXPECT_EQ(pool->free_pages(), 3);
  PagedKvCache again(pool, kShape, DType::f32);
  store(again, 5, 2);
  EXPECT_EQ(keys(again), (std::vector<double>{5, 5, 0}));  // nothing of the first one
}

TEST(KvPages, RunOutWithAClearError) {
  const NoGrad off;
  PagedKvCache cache(pool_of(2), kShape, DType::f32);
  store(cache, 1, 4);
  EXPECT_PRED2(names, error_of([&] { store(cache, 1, 1); }), "all 2 pages of 2 slots are in use");
  EXPECT_EQ(cache.length(), 4);
  cache.truncate(3);
  EXPECT_EQ(keys(cache), (std::vector<double>{1, 1, 1, 0}));
}

// Slots that were never written are NaN, in memory and nowhere else.
TEST(KvPages, UnwrittenSlotsAreCanariesThatNobodySees) {
  const NoGrad off;
  const auto pool = pool_of(4);
  PagedKvCache cache(pool, kShape, DType::f32, /*pads=*/{1});
  store(cache, 1, 4);  // three tokens in two pages
  const auto last = pool->bytes(cache.pages(0)[1], 0);
  const auto* numbers = reinterpret_cast<const float*>(last.data());
  EXPECT_EQ(numbers[0], 1);
  EXPECT_TRUE(std::isnan(numbers[4]));
  EXPECT_EQ(keys(cache), (std::vector<double>{0, 1, 1, 1, 0}));
  cache.truncate(4);
  EXPECT_TRUE(std::isnan(numbers[4]));
}

TEST(KvPages, CheckTheirContent) {
  const NoGrad off;
  const auto pool = pool_of(4);
  PagedKvCache cache(pool, kShape, DType::f32, {}, PageChecks::every_read);
  store(cache, 1, 3);
  EXPECT_EQ(keys(cache).size(), 4U);
  const PagePool::Page page = cache.pages(0)[1];
  EXPECT_NO_THROW(pool->verify(page));
  std::span<std::byte> bytes = pool->bytes(page, 1);
  bytes[5] ^= std::byte{1};
  const std::string where = "page " + std::to_string(page) + ", layer 1: checksum";
  EXPECT_PRED2(names, error_of([&] { pool->verify(page); }), where);
  EXPECT_PRED2(names, error_of([&] { keys(cache); }), where);
  bytes[5] ^= std::byte{1};
  EXPECT_NO_THROW(pool->verify(page));
  // Two slots that changed places have the same bytes, and another checksum.
  store(cache, 2, 1);
  const PagePool::Page third = cache.pages(0)[2];
  const auto slot = pool->bytes(third, 0);
  std::swap_ranges(slot.begin(), slot.begin() + 16, slot.begin() + 16);
  EXPECT_THROW(pool->verify(third), InvalidArgument);
}

// The bits of a bf16 1 are an f16 1.875: facts A7.
TEST(KvPages, HoldOneDtypeAndSayWhich) {
  const NoGrad off;
  const auto pool = pool_of(4, 2);
  PagedKvCache writer(pool, kShape, DType::bf16);
  store(writer, 1, 2);
  PagedKvCache reader(pool, kShape, DType::f16);
  EXPECT_PRED2(names, error_of([&] { reader.begin_with({writer.pages(0)}, 2); }),
               "does not hold f16");
  const Tensor k = zeros({1, 2, 4});
  EXPECT_PRED2(names, error_of([&] { pool->read(writer.pages(0)[0], 0, DType::f16, k, k); }),
               "holds bf16, and is used as f16");
  EXPECT_THROW(PagedKvCache(pool, kShape, DType::f32), InvalidArgument);
}

TEST(KvPages, SharedOnesAreCountedAndNeverWritten) {
  const NoGrad off;
  const auto pool = pool_of(8);
  PagedKvCache first(pool, kShape, DType::f32);
  store(first, 1, 4);
  PagedKvCache second(pool, kShape, DType::f32);
  second.begin_with({first.pages(0)}, 3);
  const PagePool::Page shared = first.pages(0)[0];
  EXPECT_EQ(pool->references(shared), 2);
  EXPECT_EQ(pool->free_pages(), 6);
  store(second, 7, 2);  // into the middle of the second page: a copy of its own
  EXPECT_EQ(second.pages(0)[0], shared);
  EXPECT_NE(second.pages(0)[1], first.pages(0)[1]);
  EXPECT_EQ(pool->references(first.pages(0)[1]), 1);
  EXPECT_EQ(keys(second, 1), (std::vector<double>{10, 10, 10, 70, 70, 0}));
  EXPECT_EQ(keys(first, 1), (std::vector<double>{10, 10, 10, 10, 0}));
  const Tensor k = zeros({1, 1, 4});
  EXPECT_PRED2(names, error_of([&] { pool->write(shared, 0, 0, DType::f32, k, k); }), "2 owners");
}

TEST(KvPages, RefuseNumbersThatAreNoPages) {
  const NoGrad off;
  const auto pool = pool_of(2);
  PagedKvCache cache(pool, kShape, DType::f32);
  EXPECT_PRED2(names, error_of([&] { cache.begin_with({{2}}, 2); }), "there is no page 2");
  EXPECT_PRED2(names, error_of([&] { cache.begin_with({{-1}}, 2); }), "there is no page -1");
  EXPECT_PRED2(names, error_of([&] { cache.begin_with({{0}}, 2); }), "page 0 is free");
  EXPECT_PRED2(names, error_of([&] { cache.begin_with({{}}, 2); }), "has 0 pages of 2");
  EXPECT_PRED2(names, error_of([&] { pool->release(0); }), "page 0 is free");
  EXPECT_EQ(pool->free_pages(), 2);
}

// ---- prefixes -----------------------------------------------------------------------------------

const PrefixOwner kBase{.weights = "base", .dtype = DType::f32};
const PrefixOwner kAdapter{.weights = "adapter", .dtype = DType::f32};

// Four bits: most blocks collide.
uint64_t weak_hash(uint64_t before, std::span<const int32_t> tokens, const PrefixOwner&) {
  uint64_t sum = before;
  for (const int32_t token : tokens) sum += static_cast<uint64_t>(token);
  return sum % 16;
}

std::vector<PagePool::Page> taken(PagePool& pool, int64_t count) {
  std::vector<PagePool::Page> pages;
  for (int64_t i = 0; i < count; ++i) pages.push_back(pool.take());
  return pages;
}

TEST(PrefixCache, FindsTheLongestBeginningInWholeBlocks) {
  const auto pool = pool_of(8);
  PrefixCache cache(pool, 8);
  const auto pages = taken(*pool, 3);
  const std::vector<int32_t> text{1, 2, 3, 4, 5};
  cache.keep(text, kBase, pages);
  EXPECT_EQ(cache.blocks(), 2);  // 5 begins a third block, which is not whole
  EXPECT_EQ(pool->references(pages[0]), 2);
  EXPECT_EQ(pool->references(pages[2]), 1);
  const auto found = [&](std::vector<int32_t> tokens) { return cache.find(tokens, kBase).size(); };
  EXPECT_EQ(found({1, 2, 3, 4, 9, 9}), 2U);
  EXPECT_EQ(found({1, 2, 3, 9}), 1U);
  EXPECT_EQ(found({1}), 0U);
  EXPECT_EQ(found({3, 4}), 0U);  // the same block behind another beginning
}

// Facts B7: two blocks with one hash, and an adapter whose values are twice as large.
TEST(PrefixCache, NeverHitsOnEqualHashesAlone) {
  const auto pool = pool_of(16);
  PrefixCache cache(pool, 16, &weak_hash);
  const auto a = taken(*pool, 1);
  const auto b = taken(*pool, 1);
  const auto adapter = taken(*pool, 1);
  const std::vector<int32_t> text{1, 2};
  const std::vector<int32_t> same_hash{2, 1};
  cache.keep(text, kBase, a);
  EXPECT_TRUE(cache.find(same_hash, kBase).empty());
  EXPECT_GT(cache.collisions(), 0);
  EXPECT_TRUE(cache.find(text, kAdapter).empty());
  EXPECT_TRUE(cache.find(text, {.weights = "base", .dtype = DType::f16}).empty());
  cache.keep(same_hash, kBase, b);
  cache.keep(text, kAdapter, adapter);
  EXPECT_EQ(cache.find(text, kBase), a);
  EXPECT_EQ(cache.find(same_hash, kBase), b);
  EXPECT_EQ(cache.find(text, kAdapter), adapter);
}

TEST(PrefixCache, TheStandardHashTellsTokensOrderOwnerAndBeginning) {
  const std::vector<int32_t> ab{1, 2};
  const std::vector<int32_t> ba{2, 1};
  const uint64_t hash = block_hash(0, ab, kBase);
  EXPECT_NE(hash, block_hash(0, ba, kBase));
  EXPECT_NE(hash, block_hash(1, ab, kBase));
  EXPECT_NE(hash, block_hash(0, ab, kAdapter));
  EXPECT_NE(hash, block_hash(0, ab, {.weights = "base", .dtype = DType::f16}));
}

TEST(PrefixCache, DropsTheEndOfWhatWasUsedLeastLately) {
  const auto pool = pool_of(8);
  PrefixCache cache(pool, 3);
  const std::vector<int32_t> old{1, 2, 3, 4};
  const std::vector<int32_t> other{7, 8};
  const std::vector<int32_t> fresh{9, 9};
  const auto old_pages = taken(*pool, 2);
  cache.keep(old, kBase, old_pages);
  cache.keep(other, kBase, taken(*pool, 1));
  for (const PagePool::Page page : old_pages) pool->release(page);
  cache.keep(fresh, kBase, taken(*pool, 1));
  EXPECT_EQ(cache.blocks(), 3);
  EXPECT_EQ(cache.find(old, kBase).size(), 1U);  // its second block went, and back to the pool
  EXPECT_THROW(pool->references(old_pages[1]), InvalidArgument);
  EXPECT_EQ(cache.find(other, kBase).size(), 1U);
  EXPECT_EQ(cache.find(fresh, kBase).size(), 1U);
  while (cache.drop_one()) {
  }
  EXPECT_EQ(cache.blocks(), 0);
}

}  // namespace
}  // namespace faultline::nn
