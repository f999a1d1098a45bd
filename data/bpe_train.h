#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"

namespace faultline {

struct BpeTraining {
  int64_t vocab_size = 0;                   // with the special tokens and the 256 bytes
  std::vector<std::string> special_tokens;  // take the first ids
  std::vector<std::string> patterns{std::string(kGpt2Pattern)};  // of the SplitRule
  int64_t min_frequency = 0;  // a pair that is seen less often is not merged
};

// Learns a byte-level BPE vocabulary (Sennrich et al. 2016): merges the most frequent pair of
// neighbours within pieces until the vocabulary is full or no pair is left. Of pairs seen equally
// often the one of lower left id goes first, then of lower right id, as in Hugging Face's
// BpeTrainer, whose vocabulary and merges this equals. Special tokens in the texts are text.
// Throws InvalidArgument for a vocabulary that does not hold the bytes and the special tokens, and
// for texts that are not UTF-8.
BpeTokenizer train_bpe(std::span<const std::string> texts, const BpeTraining& options);

}  // namespace faultline
