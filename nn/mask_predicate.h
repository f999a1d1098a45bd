#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nn/mask.h"

// Shapes: B batch, P positions of a sequence, Q queries, K keys.
namespace faultline::nn {

// One pair that a mask judges: positions count from the beginning of the sequence, whatever part of
// it the queries and keys at hand are.
struct MaskPoint {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  int64_t key = 0;
};

// Which part of the sequence an attention call is about. `query_offset` is the position of its
// first query, `key_offset` that of its first key (above 0 when a cache dropped earlier ones).
struct MaskPlacement {
  ScoreSizes sizes;
  // May be left out when there are as many queries as keys: then it is key_offset.
  std::optional<int64_t> query_offset = {};
  int64_t key_offset = 0;
};

enum class PaddingSide : uint8_t { left, right };

// A rule that says of each (batch, head, query, key) whether the query may see the key; rules are
// joined by & (both must allow) and | (one is enough). A rule is about positions, so it cannot
// broadcast; it becomes a Mask for one call, and a tensor only where no simpler form has its
// meaning.
class MaskPredicate {
 public:
  MaskPredicate();  // everything is seen

  static MaskPredicate causal();  // key <= query
  // |query - key| < width: with causal() the last `width` keys, the query's own among them. A width
  // below 1 is refused: leave the window out to have none.
  static MaskPredicate window(int64_t width);
  // key < count, for a prefix or for attention sinks ("Efficient streaming language models with
  // attention sinks", Xiao et al. 2023): causal() & (window(w) | first_keys(n)).
  static MaskPredicate first_keys(int64_t count);
  // Keys for which bool [B, P] is true. These two synchronise.
  static MaskPredicate valid(const Tensor& valid_BP);
  // Query and key of one document, i32 [B, P].
  static MaskPredicate same_document(const Tensor& documents_BP);
  // Keys that are text, in rows of `positions` padded on that side to the given lengths.
  static MaskPredicate padding(PaddingSide side, const std::vector<int64_t>& lengths,
                               int64_t positions);
  // Any rule. It becomes a keep tensor [B, H, Q, K].
  static MaskPredicate rule(std::function<bool(const MaskPoint&)> sees);

  friend MaskPredicate operator&(const MaskPredicate& a, const MaskPredicate& b);
  friend MaskPredicate operator|(const MaskPredicate& a, const MaskPredicate& b);

  bool operator()(const MaskPoint& at) const;

  // The mask of one call: in the form that kernels take where one has the same meaning, else with a
  // keep tensor, which is as large as the scores. Throws InvalidArgument when the query offset is
  // left out although sizes differ, or when a tensor has too few positions or another batch.
  Mask over(const MaskPlacement& placement) const;

 private:
  struct Node;
  struct Form;
  explicit MaskPredicate(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static std::optional<Form> form_of(const Node& node);
  static std::optional<Form> both(const Form& a, const Form& b);
  static std::optional<Form> either(const Form& a, const Form& b);

  std::shared_ptr<const Node> node_;
};

}  // namespace faultline::nn
