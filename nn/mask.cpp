#include "nn/mask.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/functional.h"

namespace faultline::nn {
namespace {

bool differs_by_head(const Mask& mask) { return mask.keep.defined() && mask.keep.size(1) > 1; }

// keep and bias: one size or one for all along batch and head, never along queries and keys.
void check_score_tensor(const Tensor& tensor, const char* what, const ScoreSizes& sizes) {
  if (!tensor.defined()) return;
  const auto one_or = [](int64_t size, int64_t all) { return size == 1 || size == all; };
  const Shape& shape = tensor.shape();
  const bool fits = shape.rank() == 4 && one_or(shape[0], sizes.batch) &&
                    one_or(shape[1], sizes.heads) && shape[2] == sizes.queries &&
                    shape[3] == sizes.keys;
  require(fits,
          "mask: {} must be [1 or {}, 1 or {}, {}, {}], got {}; make it with mask_from_tensor",
          what, sizes.batch, sizes.heads, sizes.queries, sizes.keys, tensor);
}

}  // namespace

void check(const Mask& mask, const ScoreSizes& sizes) {
  require(mask.window >= 0 && mask.prefix >= 0 && mask.sinks >= 0,
          "mask: window, prefix and sinks must not be negative, got {}, {} and {}", mask.window,
          mask.prefix, mask.sinks);
  const Shape keys{sizes.batch, sizes.keys};
  require(!mask.key_valid.defined() ||
              (mask.key_valid.dtype() == DType::boolean && mask.key_valid.shape() == keys),
          "mask: key_valid must be bool{}, got {}", keys, mask.key_valid);
  require(!mask.documents.defined() ||
              (mask.documents.dtype() == DType::i32 && mask.documents.shape() == keys),
          "mask: documents must be i32{}, got {}", keys, mask.documents);
  const int64_t end = mask.query_offset + sizes.queries;
  require(!mask.documents.defined() || (mask.query_offset >= 0 && end <= sizes.keys),
          "mask: documents need every query among the {} keys, got positions {} to {}; give the "
          "queries the query_offset at which they stand",
          sizes.keys, mask.query_offset, end - 1);
  check_score_tensor(mask.keep, "keep", sizes);
  check_score_tensor(mask.bias, "bias", sizes);
  require(!mask.keep.defined() || mask.keep.dtype() == DType::boolean,
          "mask: keep must hold bool, got {}", mask.keep);
  require(!mask.bias.defined() || is_floating(mask.bias.dtype()),
          "mask: bias must hold floats, got {}", mask.bias);
}

std::string kind(const Mask& mask) {
  std::string text;
  const auto add = [&](bool is_set, const std::string& part) {
    if (is_set) text += text.empty() ? part : ", " + part;
  };
  add(mask.causal, "causal");
  add(mask.window > 0, "window " + std::to_string(mask.window));
  add(mask.prefix > 0, "prefix " + std::to_string(mask.prefix));
  add(mask.sinks > 0, "sinks " + std::to_string(mask.sinks));
  add(mask.key_valid.defined(), "padding");
  add(mask.documents.defined(), "documents");
  add(mask.keep.defined(), "keep tensor");
  add(mask.bias.defined(), "bias tensor");
  return text.empty() ? "none" : text;
}

// ---- the predicate ------------------------------------------------------------------------------

VisiblePairs::VisiblePairs(const Mask& mask, const ScoreSizes& sizes)
    : rule_(mask.attributes(1)), queries_(sizes.queries), keys_(sizes.keys) {
  check(mask, sizes);
  if (mask.key_valid.defined()) valid_ = mask.key_valid.to_vector<uint8_t>();
  if (mask.documents.defined()) documents_ = mask.documents.to_vector<int32_t>();
  if (!mask.keep.defined()) return;
  keep_ = mask.keep.to_vector<uint8_t>();
  keep_batches_ = mask.keep.size(0);
  keep_heads_ = mask.keep.size(1);
}

// The rule of MaskAttributes.
bool VisiblePairs::position_allows(int64_t position, int64_t key) const {
  if (key < rule_.prefix) return true;
  if (rule_.causal && key > position) return false;
  if (rule_.window == 0 || key < rule_.sinks) return true;
  return std::abs(position - key) < rule_.window;
}

bool VisiblePairs::operator()(int64_t b, int64_t h, int64_t q, int64_t k) const {
  const int64_t position = rule_.query_offset + q;
  if (!position_allows(position, k)) return false;
  const auto at = [&](int64_t key) { return static_cast<size_t>(b * keys_ + key); };
  if (!valid_.empty() && valid_[at(k)] == 0) return false;
  if (!documents_.empty() && documents_[at(k)] != documents_[at(position)]) return false;
  if (keep_.empty()) return true;
  const int64_t plane = std::min(b, keep_batches_ - 1) * keep_heads_ + std::min(h, keep_heads_ - 1);
  return keep_[static_cast<size_t>((plane * queries_ + q) * keys_ + k)] != 0;
}

std::vector<uint8_t> visibility(const Mask& mask, const ScoreSizes& sizes) {
  const VisiblePairs visible(mask, sizes);
  std::vector<uint8_t> result;
  result.reserve(static_cast<size_t>(sizes.batch * sizes.heads * sizes.queries * sizes.keys));
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t h = 0; h < sizes.heads; ++h) {
      for (int64_t q = 0; q < sizes.queries; ++q) {
        for (int64_t k = 0; k < sizes.keys; ++k) result.push_back(visible(b, h, q, k) ? 1 : 0);
      }
    }
  }
  return result;
}

std::vector<uint8_t> visibility(const Mask& mask, int64_t batch, int64_t queries, int64_t keys) {
  require(!differs_by_head(mask),
          "visibility: heads see different keys ({}); ask with the sizes of the scores", mask.keep);
  return visibility(mask, {batch, 1, queries, keys});
}

int64_t rows_without_keys(const Mask& mask, const ScoreSizes& sizes) {
  const VisiblePairs visible(mask, sizes);
  // A query's own position is almost always visible: looking there first ends most searches.
  const auto sees_any = [&](int64_t b, int64_t h, int64_t q) {
    const int64_t own = std::max<int64_t>(0, std::min(mask.query_offset + q, sizes.keys - 1));
    for (int64_t step = 0; step < sizes.keys; ++step) {
      if (visible(b, h, q, (own - step + sizes.keys) % sizes.keys)) return true;
    }
    return false;
  };
  const int64_t heads = differs_by_head(mask) ? sizes.heads : 1;
  int64_t rows = 0;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < sizes.queries; ++q) rows += sees_any(b, h, q) ? 0 : 1;
    }
  }
  return rows * (sizes.heads / heads);
}

// ---- causal masks -------------------------------------------------------------------------------

int64_t query_offset(int64_t queries, int64_t keys, CausalAlign align) {
  return align == CausalAlign::top_left ? 0 : keys - queries;
}

Mask causal_mask(int64_t queries, int64_t keys) {
  require(queries == keys,
          "causal mask: {} queries and {} keys can be aligned in two ways; choose "
          "CausalAlign::top_left (the first query sees the first key) or bottom_right (the last "
          "query sees all keys, as with a cache)",
          queries, keys);
  return {};
}

Mask causal_mask(int64_t queries, int64_t keys, CausalAlign align) {
  return {.query_offset = query_offset(queries, keys, align),
          .top_left = align == CausalAlign::top_left};
}

// ---- masks given as tensors ---------------------------------------------------------------------

namespace {

constexpr const char* kAxisNames[] = {"batch", "head", "query", "key"};

std::string names(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis axis : axes) {
    text += (text.empty() ? "" : ", ") + std::string(kAxisNames[static_cast<int>(axis)]);
  }
  return text;
}

void check_axes(const Tensor& tensor, const std::vector<Axis>& axes, const ScoreSizes& sizes) {
  require(tensor.defined(), "mask: the tensor is undefined");
  require(tensor.rank() == static_cast<int>(axes.size()),
          "mask: {} has {} dimensions, but {} axes are named ({}); name each dimension once",
          tensor, tensor.rank(), axes.size(), names(axes));
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(axes[i]);
    require(std::count(axes.begin(), axes.end(), axes[i]) == 1, "mask: the axis {} is named twice",
            kAxisNames[axis]);
    const int64_t expected[] = {sizes.batch, sizes.heads, sizes.queries, sizes.keys};
    const int64_t size = tensor.shape()[static_cast<int>(i)];
    require(
        size == expected[axis],
        "mask: dimension {} of {} is the {} axis, which has {}, not {}; leave out an axis along "
        "which all see the same",
        i, tensor, kAxisNames[axis], expected[axis], size);
  }
  require(std::count(axes.begin(), axes.end(), Axis::key) == 1,
          "mask: no dimension of {} is the key axis (named: {}); a mask says which keys are seen. "
          "Leave rows of padding out of the loss instead",
          tensor, names(axes));
}

void check_dtype(const Tensor& tensor, MaskKind kind) {
  require(kind != MaskKind::keep || tensor.dtype() == DType::boolean,
          "mask: a keep mask holds bool, got {}; compare it (true may be seen), or say that it is "
          "additive",
          tensor);
  require(kind != MaskKind::additive || is_floating(tensor.dtype()),
          "mask: an additive mask holds floats, got {}; a bool is kept or hidden, say that it is a "
          "keep mask",
          tensor);
}

double lowest(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return -65504;
    case DType::bf16:
      return -0x1.fep127;
    case DType::f32:
      return std::numeric_limits<float>::lowest();
    default:
      return std::numeric_limits<double>::lowest();
  }
}

void check_additive(const std::vector<double>& values, const Tensor& tensor) {
  bool only_bits = true;
  bool has_one = false;
  for (const double value : values) {
    require(value < std::numeric_limits<double>::infinity(),
            "mask: an additive mask may hold -infinity, but {} holds {}", tensor, value);
    only_bits = only_bits && (value == 0 || value == 1);
    has_one = has_one || value == 1;
  }
  require(
      !(only_bits && has_one),
      "mask: the additive {} holds only 0 and 1; added to scores that hides nothing. If 1 means "
      "that a key may be seen, give `equal(mask, 1)` as a keep mask",
      tensor);
}

// As [1 or B, 1 or H, Q, K]; queries that all see the same become a view that repeats one row.
Tensor in_place(const Tensor& tensor, const std::vector<Axis>& axes, const ScoreSizes& sizes) {
  Dims order;
  Shape full{1, 1, 1, sizes.keys};
  for (int axis = 0; axis < 4; ++axis) {
    const auto found = std::find(axes.begin(), axes.end(), static_cast<Axis>(axis));
    if (found == axes.end()) continue;
    const auto dim = found - axes.begin();
    order.push_back(dim);
    full[axis] = tensor.shape()[static_cast<int>(dim)];
  }
  const Tensor four = reshape(permute(tensor, order), full);
  return expand(four, {full[0], full[1], sizes.queries, sizes.keys});
}

}  // namespace

Mask mask_from_tensor(const Tensor& tensor, const std::vector<Axis>& axes, MaskKind kind,
                      const ScoreSizes& sizes) {
  check_axes(tensor, axes, sizes);
  check_dtype(tensor, kind);
  Mask mask{.causal = false};
  if (kind == MaskKind::keep) {
    mask.keep = in_place(tensor, axes, sizes);
    return mask;
  }
  const std::vector<double> values = tensor.to_vector<double>();
  check_additive(values, tensor);
  const double hidden = lowest(tensor.dtype());
  const auto hides = [hidden](double value) { return value <= hidden; };
  Tensor bias = tensor;
  if (std::any_of(values.begin(), values.end(), hides)) {
    const Tensor keep = less(full({}, hidden, tensor.dtype()), tensor.detach());
    mask.keep = in_place(keep, axes, sizes);
    bias = where(keep, tensor, zeros({}, tensor.dtype()));
  }
  mask.bias = in_place(bias, axes, sizes);
  return mask;
}

}  // namespace faultline::nn
