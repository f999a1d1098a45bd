#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nn/kv_pages.h"

namespace faultline::nn {

// Whose keys and values these are. The same tokens have others under another adapter or dtype.
// `weights` names the weights, not a file: a hash of them, or a name that is never used again.
struct PrefixOwner {
  std::string weights;
  DType dtype = DType::f32;
  bool operator==(const PrefixOwner&) const = default;
};

// A block of tokens and what its page depends on beside them.
struct PrefixBlock {
  std::span<const int32_t> tokens;
  const PrefixOwner& owner;
  uint64_t before;  // number of the block before it, which stands for all earlier tokens; 0: none
};

// Whether a kept block, found by its hash, is the one that is asked for.
struct PrefixMatchSeam {
  static constexpr const char* name = "prefix match";
  // Tokens, owner and the block before are equal.
  using Signature = bool(const PrefixBlock& asked, const PrefixBlock& kept);
  static bool standard(const PrefixBlock& asked, const PrefixBlock& kept);
};

// The page of a kept block is about to be used for another sequence.
struct PrefixHitEvent {
  const PrefixBlock& asked;
  const PrefixBlock& kept;
};

// The hash of a block of tokens that follows a prefix with the hash `before` (0: none).
using BlockHash = uint64_t (*)(uint64_t before, std::span<const int32_t> tokens,
                               const PrefixOwner& owner);
uint64_t block_hash(uint64_t before, std::span<const int32_t> tokens, const PrefixOwner& owner);

// The hash of a prefix cache that was given none.
struct BlockHashSeam {
  static constexpr const char* name = "block hash";
  using Signature = uint64_t(uint64_t before, std::span<const int32_t> tokens,
                             const PrefixOwner& owner);
  static uint64_t standard(uint64_t before, std::span<const int32_t> tokens,
                           const PrefixOwner& owner) {
    return block_hash(before, tokens, owner);
  }
};

// Pages that hold the keys and values of beginnings of sequences, for sequences that begin alike.
// A page is found by hash, and is given out only if its tokens, all tokens before them and the
// owner are equal: two blocks with one hash are two entries.
class PrefixCache {
 public:
  // Keeps at most `most_blocks` pages; then the one that was used least lately goes, the end of a
  // prefix before its beginning. They keep their pages from going back to the pool.
  PrefixCache(std::shared_ptr<PagePool> pool, int64_t most_blocks, BlockHash hash = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The pages of the longest known beginning of `tokens`, in whole blocks.
  std::vector<PagePool::Page> find(std::span<const int32_t> tokens, const PrefixOwner& owner);
  // Keeps the pages of the whole blocks of `tokens`; page i holds tokens [i P, i P + P).
  void keep(std::span<const int32_t> tokens, const PrefixOwner& owner,
            std::span<const PagePool::Page> pages);
  // Gives back the page that was used least lately. False when there is none.
  bool drop_one();

  int64_t blocks() const { return static_cast<int64_t>(entries_.size()); }
  // How often a hash was equal and the content was not.
  int64_t collisions() const { return collisions_; }

 private:
  using Number = uint64_t;  // of an entry; 0 is none
  struct Entry {
    Number before;
    uint64_t hash;
    std::vector<int32_t> tokens;
    PrefixOwner owner;
    PagePool::Page page;
    uint64_t used;
    int64_t followers = 0;
  };

  Number lookup(Number before, uint64_t hash, std::span<const int32_t> tokens,
                const PrefixOwner& owner);
  uint64_t hash_after(Number before, std::span<const int32_t> tokens,
                      const PrefixOwner& owner) const;

  std::shared_ptr<PagePool> pool_;
  int64_t most_blocks_;
  BlockHash hash_;
  std::unordered_map<Number, Entry> entries_;
  std::unordered_multimap<uint64_t, Number> by_hash_;
  Number last_ = 0;
  uint64_t clock_ = 0;
  int64_t collisions_ = 0;
};

}  // namespace faultline::nn
