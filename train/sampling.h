#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace faultline::train {

struct SamplingOptions {
  uint64_t seed = 1;
  double temperature = 1;  // 0: the likeliest
  int64_t top_k = 0;       // only so many of the likeliest; 0: all
  double top_p = 1;        // only the likeliest that make up this much; see candidates_of

  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

// The ids that may be chosen, with weights in proportion to their probability.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

// softmax(logits / temperature) in f64, cut first to the top_k likeliest, then to the fewest
// likeliest whose share of what is left reaches top_p, at least one ("The curious case of neural
// text degeneration", Holtzman et al. 2020). Of equal logits the lower id counts as likelier, so a
// cut through a tie is the same everywhere. Cut candidates come likeliest first, uncut ones by id.
Candidates candidates_of(std::span<const float> logits, const SamplingOptions& options);

// Choice `step` among logits that are all finite: with number `step` of the seed's random sequence,
// whatever was chosen before. Of equal logits temperature 0 takes the lowest id.
int32_t choose(std::span<const float> logits, const SamplingOptions& options, int64_t step);

}  // namespace faultline::train
