#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace faultline {

// Two neighbouring tokens that become one. The place in the list is the rank: lower goes first.
struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
  bool operator==(const BpeMerge&) const = default;
};

// Byte-pair encoding of one piece (Sennrich et al. 2016): begin with its bytes and, while any pair
// of neighbours is in the list, merge the pair of lowest rank, the leftmost first. Immutable.
class BpeMerges {
 public:
  BpeMerges() = default;
  // `ids_of_bytes` are the tokens of the single bytes. No pair may be there twice; ids are at
  // least 0.
  BpeMerges(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& ids_of_bytes);

  // Appends the ids of a piece. Quadratic in its length only up to 32 bytes, n log n beyond.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint64_t pair = kEmpty;
    int32_t rank = kNoRank;
    int32_t result = -1;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr int32_t kNoRank = INT32_MAX;

  size_t slot_of(uint64_t pair) const;
  const Entry& find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> ids_of_bytes_{};
  std::vector<Entry> table_;  // open addressing, at most half full
  int shift_ = 0;
};

}  // namespace faultline
