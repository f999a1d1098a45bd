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

class ShownAttention {
 public:
  // Whether a launch is one that attention shows. Only such a launch may be given to the
  // constructor; it is read while it lasts.
  static bool is_shown_by(const Launch& launch);
  explicit ShownAttention(const Launch& launch);

  int64_t batches() const { return weights_.shape[0]; }
  int64_t keys() const { return weights_.shape[3]; }
  int64_t query_offset() const { return mask_.query_offset; }
  AttentionRow row(int64_t number) const;
  // The numbers of the rows to read: all of a small tensor, of a large one a part, another part for
  // each `turn`.
  std::vector<int64_t> rows_to_read(int64_t turn) const;

  // How far weights that attention computed may lie from exact ones, relative to each: one rounding
  // of each scaled score s (|s| eps in the exponent, twice since the largest is subtracted), one
  // of exp, and those of a sum over the keys; doubled.
  double weight_bound(const AttentionRow& row) const;
  // How far a row's weights may sum from 1: a rounding of each weight, which is relative, and one
  // of each addition to the sum that divides them; doubled.
  double sum_bound() const;

 private:
  const char* forbids(int64_t batch, int64_t query, int64_t key) const;

  TensorView scores_;
  TensorView weights_;
  MaskAttributes mask_;
  std::vector<double> valid_;
  std::vector<double> documents_;
};

// softmax of exponents, in doubles; -infinity counts nothing. Zeros when nothing counts.
std::vector<double> exact_softmax(const std::vector<double>& exponents);

// Whether weights equal exact ones within a relative bound. Below 1e-37 f32 may round to 0.
bool same_weights(const std::vector<double>& weights, const std::vector<double>& exact,
                  double relative_bound);

}  // namespace faultline::diagnose
