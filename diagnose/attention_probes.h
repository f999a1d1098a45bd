#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

// Attention computed by hand in doubles, right or with a known mistake, on inputs that tell the
// mistakes apart. Nothing here uses the framework's own attention: it is what that is judged by,
// and anybody else's kernel too.
namespace faultline::diagnose {

// One call: q [B, H, Q, D], k and v [B, G, K, D], row-major.
// Query row i stands at position query_offset + i among the keys.
struct AttentionProbe {
  std::string name;
  std::string asks;  // what it is there to find
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t key_heads = 1;
  int64_t queries = 1;
  int64_t keys = 1;
  int64_t head_size = 4;
  std::vector<float> q, k, v;
  bool causal = false;
  int64_t query_offset = 0;
  int64_t window = 0;              // keys that a query sees, itself included; 0: all
  std::vector<uint8_t> key_valid;  // [B, K], 0 for padding; empty: all are text
  std::vector<int32_t> documents;  // [B, K]; empty: one
  double softcap = 0;              // 0: none
  double scale = 0;                // of the scores; 0: 1 / sqrt(D)
  int64_t prefix = 0;              // first keys that every query sees
  int64_t sinks = 0;               // first keys that stay visible beyond the window
  std::vector<float> bias;         // [B, H, Q, K], added to the scaled scores; empty: none

  bool visible(int64_t batch_row, int64_t query, int64_t key) const;
  // The same as [B, 1, Q, K].
  std::vector<uint8_t> mask() const;
};

// The probes, always the same ones, with numbers that `dtype` (f32, f16 or bf16) holds exactly.
// Sizes differ from each other except where a mistake needs them equal.
std::vector<AttentionProbe> attention_probes(DType dtype = DType::f32);
// One more, in f32, with a bias: not every implementation takes one.
AttentionProbe bias_probe();

// How the mask meets the scores.
enum class MaskUse : uint8_t {
  keep,             // right: what is not visible has no weight
  none,             // left out
  inverted,         // keeps what should go
  add_keep,         // keep as 0 or 1, added to the scores
  add_forbidden,    // forbidden as 0 or 1, added to the scores
  multiply_scores,  // forbidden scores become 0
  multiply_weights  // weights are not summed to 1 again
};
// Which index of a padding mask meets the keys.
enum class PaddingAxis : uint8_t { key, query, batch_as_query, batch_as_head, ignored };
// What becomes of a bias.
enum class BiasUse : uint8_t { added, scaled_too, subtracted, left_out };
// What a row becomes in which no key is visible.
enum class EmptyRow : uint8_t { zeros, mean_of_values, nan };

// How attention is computed; the default is right.
struct AttentionRules {
  MaskUse mask = MaskUse::keep;
  PaddingAxis padding = PaddingAxis::key;
  EmptyRow empty_row = EmptyRow::zeros;
  BiasUse bias = BiasUse::added;
  int scale_uses = 1;        // 0: never scaled, 2: twice
  int64_t wider_window = 0;  // keys too many
  bool prefix_left_out = false;
  bool sinks_left_out = false;
  int64_t only_causal_beyond = 0;  // keys, from which on no other part of the mask counts; 0: never
  bool aligned_top_left = false;   // query i at position i, whatever came before
  bool one_document = false;       // packed documents see each other
  bool heads_tiled = false;        // query head h reads key head h mod G
  bool softcap_left_out = false;
  bool subtracts_largest = true;  // false: exp of the score as it stands, in f32
  bool skips_forbidden = true;    // false: 0 times what a forbidden value holds
  bool nan_is_zero = false;       // what is no number in keys and values counts as 0
  bool sums_in_bfloat16 = false;  // weights and their sum rounded to bf16
};

// y [B, H, Q, D].
std::vector<double> compute_attention(const AttentionProbe& probe,
                                      const AttentionRules& rules = {});

}  // namespace faultline::diagnose
