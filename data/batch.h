#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace faultline {

// The label of a position that is not predicted: cross_entropy's ignore index.
constexpr int32_t kIgnoredLabel = -1;

// Tokens of one sequence as labels are made from them.
struct TokenRow {
  std::span<const int32_t> tokens;  // T + 1 ids
  int64_t length = 0;               // the first `length` are text, the rest is padding
  int32_t end_token = 0;            // ends a document
};

// How the labels of a sequence are made from its tokens: T labels for T + 1 tokens, kIgnoredLabel
// where nothing is to be predicted. Called once a row, on the thread of the rank.
struct LabelSeam {
  static constexpr const char* name = "labels";
  using Signature = std::vector<int32_t>(const TokenRow& row);
  // The label at t is token t + 1, an end token too: that is how a model learns to stop. Nothing is
  // predicted from an end token (what follows is another document), from padding or into it.
  static std::vector<int32_t> standard(const TokenRow& row);
};

// Sequences of a step: B rows of T tokens.
struct Batch {
  Tensor inputs;     // i32 [B, T]
  Tensor labels;     // i32 [B, T], kIgnoredLabel where nothing is predicted
  Tensor documents;  // i32 [B, T]: number of the document within its row, from 0; attention stays
                     // within equal numbers. Padding has the number of the row's last document.
  Tensor key_valid;  // bool [B, T], false on padding; undefined when nothing is padded
  int64_t valid_tokens = 0;    // labels that are not ignored
  int64_t first_sequence = 0;  // number of the first row among the step's sequences
};

// Makes a batch of `rows`, all of one size T + 1, on the current Context, asking the LabelSeam for
// each. Throws InvalidArgument when the seam does not give T labels.
Batch make_batch(std::span<const TokenRow> rows, int64_t first_sequence);

}  // namespace faultline
