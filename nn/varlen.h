#pragma once

#include <optional>

#include "nn/attention.h"

// Attention over sequences of different lengths without padding. Shapes: N and M tokens of all
// sequences behind each other, S sequences, B batch, H query heads, G key heads, Q queries, D head
// size, E head size of the values.
namespace faultline::nn {

// What the queries of a sequence may see of it.
struct SequenceMask {
  bool causal = true;
  // Needed when some sequence has not as many keys as queries; there is no default.
  std::optional<CausalAlign> align = {};
  int64_t window = 0;
  int64_t prefix = 0;
  int64_t sinks = 0;
};

// Sequence i holds the queries [cu_q[i], cu_q[i + 1]) and the keys [cu_k[i], cu_k[i + 1]), as in
// FlashAttention's varlen functions.
struct SequenceBounds {
  Tensor cu_seqlens_q;       // i32 [S + 1]: 0, then the end of each sequence, N at last
  Tensor cu_seqlens_k;       // i32 [S + 1]: the same for keys, M at last
  int64_t max_seqlen_q = 0;  // 0: not stated, else no sequence may be longer
  int64_t max_seqlen_k = 0;
};

// q [N, H, D], k [M, G, D] and v [M, G, E] give [N, H, E]; differentiable. Sequences do not see
// each other. Dropout takes sequence i for number first_sequence + i of its key. Reads the bounds
// (synchronises) and throws InvalidArgument unless they begin with 0, never go down, end with the
// number of tokens and obey the maxima: a kernel that trusts them reads another sequence, or
// memory that is not its own. Shows observers the launch "attention_varlen" with inputs q, k, v,
// cu_seqlens_q, cu_seqlens_k and MaskAttributes, before it looks at the bounds.
Tensor attention_varlen(const Tensor& q_NHD, const Tensor& k_MGD, const Tensor& v_MGE,
                        const SequenceBounds& bounds, const SequenceMask& mask,
                        const AttentionOptions& options = {});

enum class PageSharing : uint8_t {
  refused,  // by two rows, or twice by one
  allowed,  // rows with a common beginning, whose pages are counted elsewhere
};

// Keys and values in pages of a common pool ("vLLM", Kwon et al. 2023): slot s of page p holds
// k_pool[p, s]. Row b's keys are the first lengths[b] slots of its pages in the order of the table;
// the entries of a row beyond those are not looked at.
struct PagedKeys {
  Tensor k_pool;      // [pages, page size, G, D]
  Tensor v_pool;      // [pages, page size, G, E]
  Tensor page_table;  // i32 [B, columns]
  Tensor lengths;     // i32 [B]; a row of length 0 is not in use, and gives zeros
  PageSharing sharing = PageSharing::refused;
};

// q [B, H, Q, D] gives [B, H, Q, E]: the Q queries are the last of each row's positions, causal.
// Reads table and lengths (synchronises) and throws InvalidArgument when a page is outside the
// pool, a row has more keys than its pages hold or fewer than queries, or a page is shared although
// that is refused. Shows observers the launch "attention_paged" with inputs q, k_pool, v_pool,
// page_table and lengths, before it looks at the table.
Tensor attention_paged(const Tensor& q_BHQD, const PagedKeys& keys,
                       const AttentionOptions& options = {});

}  // namespace faultline::nn
