#include "nn/mask_predicate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/functional.h"

namespace faultline::nn {

// A leaf with its parameter, or two nodes joined.
struct MaskPredicate::Node {
  enum class Kind : uint8_t {
    all,
    causal,
    window,
    first_keys,
    valid,
    documents,
    rule,
    both,
    either
  };
  Kind kind = Kind::all;
  int64_t number = 0;           // of window and first_keys
  Tensor tensor = {};           // of valid and documents, [B, P]
  std::vector<int64_t> values;  // its elements
  std::function<bool(const MaskPoint&)> sees = nullptr;
  std::shared_ptr<const Node> left = nullptr;
  std::shared_ptr<const Node> right = nullptr;

  bool operator()(const MaskPoint& at) const;
  // Whether some leaf of this kind is below.
  bool has(Kind wanted) const {
    return kind == wanted || (left != nullptr && (left->has(wanted) || right->has(wanted)));
  }

 private:
  int64_t value(int64_t batch, int64_t position) const {
    return values[static_cast<size_t>(batch * tensor.size(1) + position)];
  }
};

bool MaskPredicate::Node::operator()(const MaskPoint& at) const {
  switch (kind) {
    case Kind::all:
      return true;
    case Kind::causal:
      return at.key <= at.query;
    case Kind::window:
      return std::abs(at.query - at.key) < number;
    case Kind::first_keys:
      return at.key < number;
    case Kind::valid:
      return value(at.batch, at.key) != 0;
    case Kind::documents:
      return value(at.batch, at.key) == value(at.batch, at.query);
    case Kind::rule:
      return sees(at);
    case Kind::both:
      return (*left)(at) && (*right)(at);
    case Kind::either:
      break;
  }
  return (*left)(at) || (*right)(at);
}

// ---- making rules -------------------------------------------------------------------------------

MaskPredicate::MaskPredicate() : MaskPredicate(std::make_shared<Node>()) {}

MaskPredicate MaskPredicate::causal() {
  return MaskPredicate(std::make_shared<Node>(Node{.kind = Node::Kind::causal}));
}

MaskPredicate MaskPredicate::window(int64_t width) {
  require(width >= 1,
          "mask: a window of {} keys would hide even the query's own; leave the window out to have "
          "none",
          width);
  return MaskPredicate(std::make_shared<Node>(Node{.kind = Node::Kind::window, .number = width}));
}

MaskPredicate MaskPredicate::first_keys(int64_t count) {
  require(count >= 0, "mask: the number of first keys must not be negative, got {}", count);
  return MaskPredicate(
      std::make_shared<Node>(Node{.kind = Node::Kind::first_keys, .number = count}));
}

MaskPredicate MaskPredicate::valid(const Tensor& valid_BP) {
  require(valid_BP.rank() == 2 && valid_BP.dtype() == DType::boolean,
          "mask: the valid keys must be bool [B, P], got {}", valid_BP);
  return MaskPredicate(std::make_shared<Node>(Node{
      .kind = Node::Kind::valid, .tensor = valid_BP, .values = valid_BP.to_vector<int64_t>()}));
}

MaskPredicate MaskPredicate::same_document(const Tensor& documents_BP) {
  require(documents_BP.rank() == 2 && documents_BP.dtype() == DType::i32,
          "mask: documents must be i32 [B, P], got {}", documents_BP);
  return MaskPredicate(std::make_shared<Node>(Node{.kind = Node::Kind::documents,
                                                   .tensor = documents_BP,
                                                   .values = documents_BP.to_vector<int64_t>()}));
}

MaskPredicate MaskPredicate::padding(PaddingSide side, const std::vector<int64_t>& lengths,
                                     int64_t positions) {
  const auto rows = static_cast<int64_t>(lengths.size());
  std::vector<uint8_t> text(static_cast<size_t>(rows * positions));
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    require(length >= 0 && length <= positions,
            "mask: row {} has a length of {}, but there are {} positions", b, length, positions);
    const int64_t begin = side == PaddingSide::right ? 0 : positions - length;
    std::fill_n(text.begin() + b * positions + begin, length, uint8_t{1});
  }
  return valid(cast(tensor(text, {rows, positions}), DType::boolean));
}

MaskPredicate MaskPredicate::rule(std::function<bool(const MaskPoint&)> sees) {
  return MaskPredicate(
      std::make_shared<Node>(Node{.kind = Node::Kind::rule, .sees = std::move(sees)}));
}

MaskPredicate operator&(const MaskPredicate& a, const MaskPredicate& b) {
  using Node = MaskPredicate::Node;
  return MaskPredicate(
      std::make_shared<Node>(Node{.kind = Node::Kind::both, .left = a.node_, .right = b.node_}));
}

MaskPredicate operator|(const MaskPredicate& a, const MaskPredicate& b) {
  using Node = MaskPredicate::Node;
  return MaskPredicate(
      std::make_shared<Node>(Node{.kind = Node::Kind::either, .left = a.node_, .right = b.node_}));
}

bool MaskPredicate::operator()(const MaskPoint& at) const { return (*node_)(at); }

// ---- the form that kernels take -----------------------------------------------------------------

// (k < prefix  or  (causal and (window or k < sinks)))  and  valid  and  documents, as in
// MaskAttributes. `first` is a rule k < first that has not met its place yet.
struct MaskPredicate::Form {
  bool causal = false;
  int64_t window = 0;  // 0: none
  int64_t sinks = 0;
  int64_t prefix = 0;
  std::optional<int64_t> first = {};
  std::vector<Tensor> valid = {};
  std::vector<Tensor> documents = {};

  bool has_position_rule() const { return causal || window > 0; }
  bool has_tensor() const { return !valid.empty() || !documents.empty(); }
};

std::optional<MaskPredicate::Form> MaskPredicate::both(const Form& a, const Form& b) {
  if (a.first || b.first) return std::nullopt;
  // A prefix lifts the rules beside it, and sinks those of their own window, so another rule from
  // outside has no place in the form.
  if (a.prefix > 0 && (b.prefix > 0 || b.has_position_rule())) return std::nullopt;
  if (b.prefix > 0 && a.has_position_rule()) return std::nullopt;
  if (a.window > 0 && b.window > 0 && (a.sinks > 0 || b.sinks > 0)) return std::nullopt;
  Form form = a;
  form.causal = a.causal || b.causal;
  form.window =
      a.window > 0 && b.window > 0 ? std::min(a.window, b.window) : std::max(a.window, b.window);
  form.sinks = std::max(a.sinks, b.sinks);
  form.prefix = std::max(a.prefix, b.prefix);
  form.valid.insert(form.valid.end(), b.valid.begin(), b.valid.end());
  form.documents.insert(form.documents.end(), b.documents.begin(), b.documents.end());
  return form.documents.size() > 1 ? std::nullopt : std::optional(form);
}

std::optional<MaskPredicate::Form> MaskPredicate::either(const Form& a, const Form& b) {
  if (!a.first) return b.first ? either(b, a) : std::nullopt;
  if (b.has_tensor()) return std::nullopt;
  Form form = b;
  if (b.first) {
    form.first = std::max(*a.first, *b.first);
  } else if (b.prefix == 0 && !b.causal && b.window > 0) {
    form.sinks = std::max(*a.first, b.sinks);  // may still meet causal()
  } else {
    form.prefix = std::max(*a.first, b.prefix);
  }
  return form;
}

std::optional<MaskPredicate::Form> MaskPredicate::form_of(const Node& node) {
  using Kind = Node::Kind;
  switch (node.kind) {
    case Kind::all:
      return Form{};
    case Kind::causal:
      return Form{.causal = true};
    case Kind::window:
      return Form{.window = node.number};
    case Kind::first_keys:
      return Form{.first = node.number};
    case Kind::valid:
      return Form{.valid = {node.tensor}};
    case Kind::documents:
      return Form{.documents = {node.tensor}};
    case Kind::rule:
      return std::nullopt;
    case Kind::both:
    case Kind::either:
      break;
  }
  const std::optional<Form> left = form_of(*node.left);
  const std::optional<Form> right = form_of(*node.right);
  if (!left || !right) return std::nullopt;
  return node.kind == Kind::both ? both(*left, *right) : either(*left, *right);
}

namespace {

struct Offsets {
  int64_t query;
  int64_t key;
};

Offsets offsets_of(const MaskPlacement& placement) {
  const ScoreSizes& sizes = placement.sizes;
  require(placement.query_offset.has_value() || sizes.queries == sizes.keys,
          "mask: {} queries and {} keys need a query_offset: {} if the first query stands at the "
          "first key, {} if the last stands at the last",
          sizes.queries, sizes.keys, placement.key_offset,
          placement.key_offset + sizes.keys - sizes.queries);
  return {placement.query_offset.value_or(placement.key_offset), placement.key_offset};
}

// [B, P] has to know every position that it is asked for.
void check_positions(const Tensor& tensor, const MaskPlacement& placement, int64_t end) {
  require(tensor.size(0) == placement.sizes.batch && tensor.size(1) >= end,
          "mask: {} must have {} rows and at least {} positions", tensor, placement.sizes.batch,
          end);
}

Tensor keys_of(const Tensor& tensor_BP, const Offsets& offsets, const ScoreSizes& sizes) {
  return slice(tensor_BP, 1, offsets.key, offsets.key + sizes.keys);
}

}  // namespace

Mask MaskPredicate::over(const MaskPlacement& placement) const {
  const ScoreSizes& sizes = placement.sizes;
  const Offsets offsets = offsets_of(placement);
  const int64_t keys_end = offsets.key + sizes.keys;
  const int64_t queries_end = offsets.query + sizes.queries;
  const std::function<void(const Node&)> check = [&](const Node& node) {
    if (node.left != nullptr) check(*node.left);
    if (node.right != nullptr) check(*node.right);
    if (node.kind == Node::Kind::valid) check_positions(node.tensor, placement, keys_end);
    if (node.kind != Node::Kind::documents) return;
    check_positions(node.tensor, placement, std::max(keys_end, queries_end));
    require(offsets.query >= 0,
            "mask: documents need query positions that are not negative, got {}", offsets.query);
  };
  require(offsets.key >= 0, "mask: key_offset must not be negative, got {}", offsets.key);
  check(*node_);

  const std::optional<Form> form = form_of(*node_);
  const bool documents_fit = form && (form->documents.empty() ||
                                      (offsets.query >= offsets.key && queries_end <= keys_end));
  if (form && !form->first && documents_fit) {
    Mask mask{.causal = form->causal,
              .query_offset = offsets.query - offsets.key,
              .window = form->window,
              .prefix = std::max<int64_t>(0, form->prefix - offsets.key),
              .sinks = std::max<int64_t>(0, form->sinks - offsets.key),
              .top_left = true};  // offsets_of() had it said
    for (const Tensor& valid : form->valid) {
      const Tensor keys = keys_of(valid, offsets, sizes);
      mask.key_valid = mask.key_valid.defined() ? logical_and(mask.key_valid, keys) : keys;
    }
    if (!form->documents.empty()) mask.documents = keys_of(form->documents[0], offsets, sizes);
    return mask;
  }

  using Kind = Node::Kind;
  const bool by_head = node_->has(Kind::rule);
  const bool by_batch = by_head || node_->has(Kind::valid) || node_->has(Kind::documents);
  const Shape shape{by_batch ? sizes.batch : 1, by_head ? sizes.heads : 1, sizes.queries,
                    sizes.keys};
  std::vector<uint8_t> keep;
  keep.reserve(static_cast<size_t>(numel(shape)));
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t q = 0; q < sizes.queries; ++q) {
        for (int64_t k = 0; k < sizes.keys; ++k) {
          keep.push_back((*node_)({b, h, offsets.query + q, offsets.key + k}) ? 1 : 0);
        }
      }
    }
  }
  return {.causal = false, .keep = cast(tensor(keep, shape), DType::boolean)};
}

}  // namespace faultline::nn
