#include "data/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "core/error.h"

namespace faultline {
namespace {

constexpr size_t kShort = 32;

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeMerges::BpeMerges(const std::vector<BpeMerge>& merges,
                     const std::array<int32_t, 256>& ids_of_bytes)
    : ids_of_bytes_(ids_of_bytes) {
  const size_t slots = std::bit_ceil(std::max<size_t>(2 * merges.size(), 16));
  table_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    Entry& entry = table_[slot_of(pair_of(merge.left, merge.right))];
    invariant(entry.pair == kEmpty, "bpe: merge {} is there twice", rank);
    entry = {pair_of(merge.left, merge.right), static_cast<int32_t>(rank), merge.result};
  }
}

// Where the pair is, or would be.
size_t BpeMerges::slot_of(uint64_t pair) const {
  size_t slot = pair * 0x9E3779B97F4A7C15 >> shift_;
  while (table_[slot].pair != pair && table_[slot].pair != kEmpty) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  return slot;
}

const BpeMerges::Entry& BpeMerges::find(int32_t left, int32_t right) const {
  return table_[slot_of(pair_of(left, right))];
}

void BpeMerges::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShort) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

// Looks at every pair for the lowest rank: for a word that is faster than any order kept.
void BpeMerges::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShort> token;
  std::array<const Entry*, kShort> merge;  // of each token with the next
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) token[i] = ids_of_bytes_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merge[i] = &find(token[i], token[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merge[i]->rank < merge[best]->rank) best = i;
    }
    if (merge[best]->rank == kNoRank) break;
    token[best] = merge[best]->result;
    std::copy(token.begin() + best + 2, token.begin() + count, token.begin() + best + 1);
    std::copy(merge.begin() + best + 1, merge.begin() + count - 1, merge.begin() + best);
    --count;
    if (best > 0) merge[best - 1] = &find(token[best - 1], token[best]);
    if (best + 1 < count) merge[best] = &find(token[best], token[best + 1]);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + count);
}

// A linked list of tokens and a heap of the merges that wait. A merge found stale when its turn
// comes (a neighbour has merged meanwhile) is passed over.
void BpeMerges::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  constexpr int32_t kNone = -1;
  struct Node {
    int32_t token;
    int32_t previous;
    int32_t next;
  };
  struct Waiting {
    int32_t rank;
    int32_t place;  // of the left token
    int32_t left, right;
    int32_t result;
    bool operator>(const Waiting& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  require(piece.size() < INT32_MAX, "bpe: a piece of {} bytes is too long", piece.size());
  const auto count = static_cast<int32_t>(piece.size());
  std::vector<Node> nodes(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t token = ids_of_bytes_[static_cast<uint8_t>(piece[i])];
    nodes[i] = {token, i - 1, i + 1 == count ? kNone : i + 1};
  }
  std::vector<Waiting> heap;
  heap.reserve(piece.size());
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting({}, std::move(heap));
  const auto offer = [&](int32_t place) {
    if (place == kNone || nodes[place].next == kNone) return;
    const int32_t left = nodes[place].token;
    const int32_t right = nodes[nodes[place].next].token;
    const Entry& entry = find(left, right);
    if (entry.rank != kNoRank) waiting.push({entry.rank, place, left, right, entry.result});
  };
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!waiting.empty()) {
    const Waiting merge = waiting.top();
    waiting.pop();
    Node& left = nodes[merge.place];
    const bool fresh =
        left.token == merge.left && left.next != kNone && nodes[left.next].token == merge.right;
    if (!fresh) continue;
    Node& right = nodes[left.next];
    left.token = merge.result;
    left.next = right.next;
    right.token = kNone;
    if (left.next != kNone) nodes[left.next].previous = merge.place;
    offer(left.previous);
    offer(merge.place);
  }
  for (int32_t i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].token);
}

}  // namespace faultline
