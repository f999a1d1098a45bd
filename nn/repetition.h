#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nn/language_model.h"

// Why a model repeats itself: because it was taught to, or because its cache shows it another past
// than the text has.
namespace faultline::nn {

// How much a text repeats itself.
struct Repetition {
  double share = 0;           // 1 - different n-grams / n-grams; 0 without any
  int64_t repeated_tail = 0;  // tokens of the longest end that stands directly before itself
};
// Throws InvalidArgument unless n is at least 1.
Repetition repetition_of(std::span<const int32_t> tokens, int64_t n = 4);

// Where a forward pass with a cache leaves the one over the whole text.
struct CacheDifference {
  double largest_logit = 0;  // |cached - full| over all positions
  int64_t position = -1;     // the first one beyond the tolerance; -1: none
  int64_t layer = -1;        // the first one there; num_layers: only the logits differ
};

enum class RepetitionOrigin : uint8_t {
  data,   // cached and full agree: what the model learned, its labels or its weights
  cache,  // they differ: the cache, its positions, or rotary angles at an offset
};

struct RepetitionReport {
  Repetition repetition;
  CacheDifference difference;
  RepetitionOrigin origin = RepetitionOrigin::data;
};

// Runs `tokens` through the model twice in evaluation mode: at once without a cache, and as a
// generation does, the first `prompt` tokens together and then one at a time, with `cache`, which
// is empty. Compares each block's output and the logits at each position. `tolerance` is relative
// to the largest value of the block, or of the logits, in the full pass; rounding in f32 stays
// below 1e-4 for some dozen layers. NaN differs from everything. Throws InvalidArgument for an
// empty text, a prompt outside [1, tokens], and a cache that is not empty.
RepetitionReport locate_repetition(LanguageModel& model, std::span<const int32_t> tokens,
                                   int64_t prompt, KvCache& cache, double tolerance = 1e-4);

// For reports: "layer 3 at position 17", "the logits at position 17", "nowhere".
std::string place_of(const CacheDifference& difference, const ModelShape& shape);

}  // namespace faultline::nn
