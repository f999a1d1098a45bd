#include "nn/prefix_cache.h"

#include <algorithm>

#include "core/context.h"
#include "core/rng.h"

namespace faultline::nn {

uint64_t block_hash(uint64_t before, std::span<const int32_t> tokens, const PrefixOwner& owner) {
  uint64_t hash = before ^ stream_of(owner.weights.c_str()) ^ static_cast<uint64_t>(owner.dtype);
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 32;
  }
  return hash;
}

// `before` stands for all earlier tokens: it was found by comparing them.
bool PrefixMatchSeam::standard(const PrefixBlock& asked, const PrefixBlock& kept) {
  return asked.before == kept.before && asked.owner == kept.owner &&
         std::equal(asked.tokens.begin(), asked.tokens.end(), kept.tokens.begin(),
                    kept.tokens.end());
}

PrefixCache::PrefixCache(std::shared_ptr<PagePool> pool, int64_t most_blocks, BlockHash hash)
    : pool_(std::move(pool)), most_blocks_(most_blocks), hash_(hash) {
  require(most_blocks >= 1, "prefix cache: needs room for at least one block, got {}", most_blocks);
}

PrefixCache::~PrefixCache() {
  for (const auto& [number, entry] : entries_) pool_->release(entry.page);
}

uint64_t PrefixCache::hash_after(Number before, std::span<const int32_t> tokens,
                                 const PrefixOwner& owner) const {
  const uint64_t hash = before == 0 ? 0 : entries_.at(before).hash;
  if (hash_ != nullptr) return hash_(hash, tokens, owner);
  return Context::current().seams.call<BlockHashSeam>(hash, tokens, owner);
}

PrefixCache::Number PrefixCache::lookup(Number before, uint64_t hash,
                                        std::span<const int32_t> tokens, const PrefixOwner& owner) {
  const Context& context = Context::current();
  const PrefixBlock asked{tokens, owner, before};
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    Entry& entry = entries_.at(found->second);
    const PrefixBlock kept{entry.tokens, entry.owner, entry.before};
    if (context.seams.call<PrefixMatchSeam>(asked, kept)) {
      context.events.emit(PrefixHitEvent{asked, kept});
      entry.used = ++clock_;
      return found->second;
    }
    ++collisions_;
  }
  return 0;
}

std::vector<PagePool::Page> PrefixCache::find(std::span<const int32_t> tokens,
                                              const PrefixOwner& owner) {
  const auto P = static_cast<size_t>(pool_->shape().slots);
  std::vector<PagePool::Page> pages;
  Number before = 0;
  for (size_t begin = 0; begin + P <= tokens.size(); begin += P) {
    const auto block = tokens.subspan(begin, P);
    before = lookup(before, hash_after(before, block, owner), block, owner);
    if (before == 0) break;
    pages.push_back(entries_.at(before).page);
  }
  return pages;
}

void PrefixCache::keep(std::span<const int32_t> tokens, const PrefixOwner& owner,
                       std::span<const PagePool::Page> pages) {
  const auto P = static_cast<size_t>(pool_->shape().slots);
  Number before = 0;
  for (size_t i = 0; (i + 1) * P <= tokens.size() && i < pages.size(); ++i) {
    const auto block = tokens.subspan(i * P, P);
    const uint64_t hash = hash_after(before, block, owner);
    Number number = lookup(before, hash, block, owner);
    if (number == 0) {
      // The blocks before this one were used a moment ago: none of them goes.
      if (blocks() >= most_blocks_ && (static_cast<int64_t>(i) >= most_blocks_ || !drop_one())) {
        return;
      }
      pool_->retain(pages[i]);
      number = ++last_;
      entries_[number] = {.before = before,
                          .hash = hash,
                          .tokens = {block.begin(), block.end()},
                          .owner = owner,
                          .page = pages[i],
                          .used = ++clock_,
                          .followers = 0};
      by_hash_.emplace(hash, number);
      if (before != 0) ++entries_.at(before).followers;
    }
    before = number;
  }
}

bool PrefixCache::drop_one() {
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->second.followers > 0) continue;
    if (oldest == entries_.end() || it->second.used < oldest->second.used) oldest = it;
  }
  if (oldest == entries_.end()) return false;
  const Entry& entry = oldest->second;
  if (entry.before != 0) --entries_.at(entry.before).followers;
  const auto [begin, end] = by_hash_.equal_range(entry.hash);
  by_hash_.erase(
      std::find_if(begin, end, [&](const auto& at) { return at.second == oldest->first; }));
  pool_->release(entry.page);
  entries_.erase(oldest);
  return true;
}

}  // namespace faultline::nn
