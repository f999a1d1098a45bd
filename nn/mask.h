#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "kernels/attributes.h"

// Shapes: B batch, H query heads, Q queries, K keys.
namespace faultline::nn {

// The sizes of the scores of one attention call.
struct ScoreSizes {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t queries = 0;
  int64_t keys = 0;
};

// Which keys a query may see, in the form that kernels take: never a tensor that can broadcast to
// the wrong axis. A query sees a key when every part that is set allows it. Where a mask does not
// come from these parts, MaskPredicate makes one from rules, and mask_from_tensor from a tensor.
struct Mask {
  bool causal = true;
  // Position of the first query among the keys (0 without a cache).
  int64_t query_offset = 0;
  Tensor key_valid;    // bool [B, K], padding is false; may be undefined
  Tensor documents;    // i32 [B, K], the document of each position; may be undefined
  int64_t window = 0;  // keys that a query sees, itself included; 0: all
  int64_t prefix = 0;  // first keys that every query sees
  int64_t sinks = 0;   // first keys that stay visible beyond the window
  // Says that a query_offset of 0 is meant although there are more keys than queries, or fewer:
  // attention() refuses one that may have been forgotten. See CausalAlign.
  bool top_left = false;
  // What only the implementation `math` takes:
  Tensor keep;  // bool [1 or B, 1 or H, Q, K], hidden is false; may be undefined
  Tensor bias;  // float [1 or B, 1 or H, Q, K], added to the scaled scores; may be undefined

  // As kernels take it.
  MaskAttributes attributes(double scale) const {
    return {causal, query_offset, scale, window, prefix, sinks};
  }
};

// Throws InvalidArgument naming the first part that does not fit scores of these sizes.
void check(const Mask& mask, const ScoreSizes& sizes);

// The parts that are set, for reports: "causal, window 4, padding", or "none".
std::string kind(const Mask& mask);

// The predicate spelled out, for oracles and detectors. Reads the mask's tensors once.
class VisiblePairs {
 public:
  // Throws as check() does.
  VisiblePairs(const Mask& mask, const ScoreSizes& sizes);
  // Whether query q of batch b and head h may see key k.
  bool operator()(int64_t b, int64_t h, int64_t q, int64_t k) const;

 private:
  bool position_allows(int64_t position, int64_t key) const;

  MaskAttributes rule_;
  int64_t queries_;
  int64_t keys_;
  std::vector<uint8_t> valid_;      // [B, K], empty: all
  std::vector<int32_t> documents_;  // [B, K], empty: one
  std::vector<uint8_t> keep_;       // of the shape below, empty: all
  int64_t keep_batches_ = 1;
  int64_t keep_heads_ = 1;
};

// 1 where query q of batch b may see key k, in the order [B, Q, K]. Throws InvalidArgument when
// heads see different keys; then ask with sizes, which gives [B, H, Q, K].
std::vector<uint8_t> visibility(const Mask& mask, int64_t batch, int64_t queries, int64_t keys);
std::vector<uint8_t> visibility(const Mask& mask, const ScoreSizes& sizes);

// How many of the B x H x Q rows see no key. Their weights and outputs are zeros, so that nothing
// becomes NaN; a model that has many of them is told nothing at those positions.
int64_t rows_without_keys(const Mask& mask, const ScoreSizes& sizes);

// Where the diagonal of a causal mask lies when there are more keys than queries, or fewer. Both
// conventions are in use (FlashAttention changed from the first to the second in 2.1), so there is
// no default.
enum class CausalAlign : uint8_t {
  top_left,      // query 0 stands at key 0
  bottom_right,  // the last query stands at the last key, as with a cache
};

// The position of the first query among the keys.
int64_t query_offset(int64_t queries, int64_t keys, CausalAlign align);

// A causal mask. Without an alignment as many queries as keys are needed, else InvalidArgument.
Mask causal_mask(int64_t queries, int64_t keys);
Mask causal_mask(int64_t queries, int64_t keys, CausalAlign align);

// ---- masks given as tensors ---------------------------------------------------------------------

enum class Axis : uint8_t { batch, head, query, key };
enum class MaskKind : uint8_t {
  keep,      // bool: true may be seen
  additive,  // float: added to the scaled scores; -infinity and the dtype's lowest number hide
};

// A mask from a tensor whose every dimension is named, so that none can be taken for another: an
// axis that is not named has the same mask everywhere. Not causal; combine it by setting the other
// parts. Throws InvalidArgument when the rank differs from the number of axes, an axis is named
// twice or has another size than the scores, the keys are not among them, the dtype contradicts the
// kind, or an additive mask holds NaN, +infinity, or nothing but 0 and 1 (a keep mask in floats,
// which would hide nothing). Synchronises.
Mask mask_from_tensor(const Tensor& tensor, const std::vector<Axis>& axes, MaskKind kind,
                      const ScoreSizes& sizes);

}  // namespace faultline::nn
