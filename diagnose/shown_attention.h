#pragma once

#include <vector>

#include "core/launch.h"
#include "kernels/attributes.h"

// What attention shows as the launch "attention", row by row: the scores and weights of one query,
// and what the mask says of each key. The predicate of the mask is computed here from its parts,
// not taken from the program.
namespace faultline::diagnose {

struct AttentionRow {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  std::vector<double> scores;        // scaled, one for each key
  std::vector<double> weights;       // one for each key
  std::vector<const char*> forbids;  // "" where the key may be seen, else what forbids it

  bool allowed(size_t key) const { return *forbids[key] == 0; }
  // Whether no score and no weight is NaN or infinite.
  bool finite() const;
  // "batch 0, head 1, query 2"
  std::string place() const;
};

// How far weights that attention computed may lie from exact ones: relative to each, and beyond
// that by the smallest numbers of their dtype.
struct WeightBound {
  double relative = 0;
  double absolute = 0;
  // Where rounding may change a weight by half of itself, it could be anyone's.
  bool can_tell() const { return relative < 0.5; }
};

class ShownAttention {
 public:
  // Whether a launch is one that attention shows, or a masked softmax, which knows as much. Only
  // such a launch may be given to the constructor; it is read while it lasts.
  static bool is_shown_by(const Launch& launch);
  static bool is_masked_softmax(const Launch& launch);
  explicit ShownAttention(const Launch& launch);

  int64_t batches() const { return weights_.shape[0]; }
  int64_t heads() const { return weights_.shape[1]; }
  int64_t queries() const { return weights_.shape[2]; }
  int64_t keys() const { return weights_.shape[3]; }
  int64_t query_offset() const { return mask_.query_offset; }

  // The parts of the mask's predicate; a part that is absent allows all.
  bool is_padded() const { return !valid_.empty(); }
  bool causality_allows(int64_t query, int64_t key) const;
  bool window_allows(int64_t query, int64_t key) const;
  bool is_text(int64_t batch, int64_t key) const;
  bool in_one_document(int64_t batch, int64_t query, int64_t key) const;
  bool allows(int64_t batch, int64_t query, int64_t key) const;

  AttentionRow row(int64_t number) const;
  // The same into `row`, whose memory is used again.
  void read(int64_t number, AttentionRow& row) const;
  // The weights alone, which is less work.
  void read_weights(int64_t number, AttentionRow& row) const;
  // The numbers of the rows to read: all of a small tensor, of a large one a part, another part for
  // each `turn`.
  std::vector<int64_t> rows_to_read(int64_t turn) const;

  // With u the unit roundoff of scores or weights, whichever is larger: each scaled score s is
  // rounded by |s| u, the largest too, and their difference by 2 |s| u; exp, the division and the
  // result take a few u; the sum over the keys is made in f32 at least. All that doubled. A weight
  // may be 0 where its dtype ends (loses_to_zero), doubled too.
  WeightBound weight_bound(const AttentionRow& row) const;
  // How far a row's weights may sum from 1: a rounding of each weight and one of each addition to
  // the sum that divides them; doubled.
  double sum_bound() const;
  // Below this |score| no softmax loses a key, not even one that takes exp of the score as it
  // stands: neither the exponential nor the sum of all leaves the weights' dtype.
  double safe_score() const;

 private:
  const char* forbids(int64_t batch, int64_t query, int64_t key) const;

  TensorView scores_;
  TensorView weights_;
  TensorView keep_;  // bool [1 or B, 1 or H, Q, K]; may be undefined
  MaskAttributes mask_;
  std::vector<double> valid_;
  std::vector<double> documents_;
};

// softmax of exponents, in doubles; -infinity counts nothing. Zeros when nothing counts.
std::vector<double> exact_softmax(const std::vector<double>& exponents);

// Whether weights equal exact ones within a bound.
bool same_weights(const std::vector<double>& weights, const std::vector<double>& exact,
                  const WeightBound& bound);

}  // namespace faultline::diagnose
