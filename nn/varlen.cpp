#include "nn/varlen.h"

#include <algorithm>
#include <map>

#include "autograd/functional.h"
#include "autograd/observe.h"

namespace faultline::nn {
namespace {

// ---- sequences behind each other ----------------------------------------------------------------

std::vector<int64_t> checked_bounds(const Tensor& bounds, const char* what, int64_t tokens,
                                    int64_t longest) {
  require(
      bounds.defined() && bounds.dtype() == DType::i32 && bounds.rank() == 1 && bounds.numel() >= 1,
      "attention_varlen: {} must be i32 [S + 1], got {}", what, bounds);
  const std::vector<int64_t> ends = bounds.to_vector<int64_t>();
  require(ends.front() == 0, "attention_varlen: {} must begin with 0, got {}", what, ends.front());
  for (size_t i = 1; i < ends.size(); ++i) {
    const int64_t length = ends[i] - ends[i - 1];
    require(length >= 0,
            "attention_varlen: {} must not go down, but goes from {} to {} at sequence {}; give "
            "ends, not lengths",
            what, ends[i - 1], ends[i], i - 1);
    require(longest == 0 || length <= longest,
            "attention_varlen: {} gives sequence {} a length of {}, above the stated maximum of {}",
            what, i - 1, length, longest);
  }
  require(ends.back() == tokens,
          "attention_varlen: {} must end with the number of tokens, {}, got {}", what, tokens,
          ends.back());
  return ends;
}

// Tokens [begin, end) of x [N, H, D] as a batch [1, H, T, D].
Tensor sequence(const Tensor& x_NHD, int64_t begin, int64_t end) {
  const Tensor x_THD = slice(x_NHD, 0, begin, end);
  const Tensor x_1THD = reshape(x_THD, {1, end - begin, x_NHD.size(1), x_NHD.size(2)});
  return permute(x_1THD, {0, 2, 1, 3});
}

Mask mask_of(const SequenceMask& rules, int64_t queries, int64_t keys) {
  const bool placed = queries == keys || rules.align.has_value();
  require(
      placed || (!rules.causal && rules.window == 0),
      "attention_varlen: a sequence has {} queries and {} keys; choose CausalAlign::top_left or "
      "bottom_right",
      queries, keys);
  const CausalAlign align = rules.align.value_or(CausalAlign::top_left);
  Mask mask = causal_mask(queries, keys, align);
  mask.causal = rules.causal;
  mask.window = rules.window;
  mask.prefix = rules.prefix;
  mask.sinks = rules.sinks;
  return mask;
}

// Options whose dropout is that of the i-th sequence.
AttentionOptions for_sequence(const AttentionOptions& options, int64_t i) {
  AttentionOptions own = options;
  if (own.dropout.p > 0) own.dropout.key = own.dropout.key + tensor<int64_t>({0, 0, i});
  return own;
}

}  // namespace

Tensor attention_varlen(const Tensor& q_NHD, const Tensor& k_MGD, const Tensor& v_MGE,
                        const SequenceBounds& bounds, const SequenceMask& mask,
                        const AttentionOptions& options) {
  require(
      q_NHD.rank() == 3 && k_MGD.rank() == 3 && v_MGE.rank() == 3 && k_MGD.size(0) == v_MGE.size(0),
      "attention_varlen: takes q [N, H, D], k [M, G, D] and v [M, G, E], got {}, {} and {}", q_NHD,
      k_MGD, v_MGE);
  observe("attention_varlen", {q_NHD, k_MGD, v_MGE, bounds.cu_seqlens_q, bounds.cu_seqlens_k},
          MaskAttributes{.causal = mask.causal, .window = mask.window});
  const std::vector<int64_t> ends_q =
      checked_bounds(bounds.cu_seqlens_q, "cu_seqlens_q", q_NHD.size(0), bounds.max_seqlen_q);
  const std::vector<int64_t> ends_k =
      checked_bounds(bounds.cu_seqlens_k, "cu_seqlens_k", k_MGD.size(0), bounds.max_seqlen_k);
  require(ends_q.size() == ends_k.size(),
          "attention_varlen: cu_seqlens_q has {} sequences, cu_seqlens_k has {}", ends_q.size() - 1,
          ends_k.size() - 1);

  const int64_t H = q_NHD.size(1);
  const int64_t E = v_MGE.size(2);
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < ends_q.size(); ++i) {
    const int64_t queries = ends_q[i + 1] - ends_q[i];
    const int64_t keys = ends_k[i + 1] - ends_k[i];
    if (queries == 0) continue;
    const Tensor y_1HTE = attention(
        sequence(q_NHD, ends_q[i], ends_q[i + 1]), sequence(k_MGD, ends_k[i], ends_k[i + 1]),
        sequence(v_MGE, ends_k[i], ends_k[i + 1]), mask_of(mask, queries, keys),
        for_sequence(options, static_cast<int64_t>(i)));
    parts.push_back(reshape(permute(y_1HTE, {0, 2, 1, 3}), {queries, H, E}));
  }
  return parts.empty() ? zeros({0, H, E}, q_NHD.dtype()) : cat(parts, 0);
}

namespace {

// ---- pages --------------------------------------------------------------------------------------

// The pages of one row that is in use.
using Pages = std::vector<int32_t>;

class PageTable {
 public:
  PageTable(const PagedKeys& keys, int64_t rows, int64_t queries) : keys_(keys) {
    check_tensors(rows);
    lengths_ = keys.lengths.to_vector<int64_t>();
    const std::vector<int32_t> table = keys.page_table.to_vector<int32_t>();
    const int64_t columns = keys.page_table.size(1);
    for (int64_t b = 0; b < rows; ++b) {
      const int64_t count = checked_page_count(b, queries, columns);
      const auto begin = table.begin() + b * columns;
      pages_.emplace_back(begin, begin + count);
      check_pages(b);
    }
  }

  int64_t length(int64_t row) const { return lengths_[static_cast<size_t>(row)]; }

  // The keys or values of a row, from its pages in the pool, as [1, G, K, D].
  Tensor gather(const Tensor& pool_PSGD, int64_t row) const {
    const Pages& pages = pages_[static_cast<size_t>(row)];
    const auto count = static_cast<int64_t>(pages.size());
    const Tensor own = index_select(pool_PSGD, 0, tensor(pages, {count}));
    const int64_t slots = count * pool_PSGD.size(1);
    const Tensor all_MGD = reshape(own, {slots, pool_PSGD.size(2), pool_PSGD.size(3)});
    return sequence(all_MGD, 0, length(row));
  }

 private:
  void check_tensors(int64_t rows) const {
    const Tensor& k = keys_.k_pool;
    const Tensor& v = keys_.v_pool;
    require(k.rank() == 4 && v.rank() == 4 && k.size(0) == v.size(0) && k.size(1) == v.size(1) &&
                k.size(1) > 0,
            "attention_paged: takes pools [pages, page size, G, D] of keys and values, got {} and "
            "{}",
            k, v);
    require(keys_.page_table.rank() == 2 && keys_.page_table.dtype() == DType::i32 &&
                keys_.page_table.size(0) == rows,
            "attention_paged: page_table must be i32 [{}, columns], got {}", rows,
            keys_.page_table);
    require(keys_.lengths.dtype() == DType::i32 && keys_.lengths.shape() == Shape{rows},
            "attention_paged: lengths must be i32 [{}], got {}", rows, keys_.lengths);
  }

  int64_t checked_page_count(int64_t row, int64_t queries, int64_t columns) const {
    const int64_t page = keys_.k_pool.size(1);
    const int64_t keys = length(row);
    require(keys >= 0, "attention_paged: row {} has a length of {}", row, keys);
    require(keys == 0 || keys >= queries,
            "attention_paged: row {} has {} keys, fewer than its {} queries; write the keys of the "
            "new positions first",
            row, keys, queries);
    require(keys <= columns * page,
            "attention_paged: row {} has {} keys, but its {} pages of {} hold {}; give the table "
            "{} columns",
            row, keys, columns, page, columns * page, (keys + page - 1) / page);
    return (keys + page - 1) / page;
  }

  void check_pages(int64_t row) {
    const int64_t pool = keys_.k_pool.size(0);
    for (const int32_t page : pages_[static_cast<size_t>(row)]) {
      require(page >= 0 && page < pool,
              "attention_paged: row {} uses page {}, but the pool has pages 0 to {}", row, page,
              pool - 1);
      const auto [owner, is_free] = owners_.emplace(page, row);
      require(is_free || keys_.sharing == PageSharing::allowed,
              "attention_paged: page {} belongs to row {} and to row {}; one would read the "
              "other's keys. If they share a beginning, say PageSharing::allowed",
              page, owner->second, row);
    }
  }

  const PagedKeys& keys_;
  std::vector<int64_t> lengths_;
  std::vector<Pages> pages_;
  std::map<int32_t, int64_t> owners_;  // of each page, the first row that uses it
};

}  // namespace

Tensor attention_paged(const Tensor& q_BHQD, const PagedKeys& keys,
                       const AttentionOptions& options) {
  require(q_BHQD.rank() == 4, "attention_paged: queries must be [B, H, Q, D], got {}", q_BHQD);
  observe("attention_paged", {q_BHQD, keys.k_pool, keys.v_pool, keys.page_table, keys.lengths});
  const Shape& q = q_BHQD.shape();
  const PageTable table(keys, q[0], q[2]);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < q[0]; ++b) {
    if (table.length(b) == 0) {
      rows.push_back(zeros({1, q[1], q[2], keys.v_pool.size(3)}, q_BHQD.dtype()));
      continue;
    }
    rows.push_back(attention(
        slice(q_BHQD, 0, b, b + 1), table.gather(keys.k_pool, b), table.gather(keys.v_pool, b),
        causal_mask(q[2], table.length(b), CausalAlign::bottom_right), for_sequence(options, b)));
  }
  return rows.empty() ? zeros({0, q[1], q[2], keys.v_pool.size(3)}, q_BHQD.dtype()) : cat(rows, 0);
}

}  // namespace faultline::nn
