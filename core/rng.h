#pragma once

#include <array>
#include <cstdint>

namespace faultline {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), from
// Random123. A pure function of key and counter: the value at a place does not depend on threads or
// on the order of evaluation.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A random sequence addressed by index. `stream` separates uses of one seed (initialisation,
// sampler, dropout, sampling).
class RandomSequence {
 public:
  RandomSequence(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  // 64 uniform bits.
  uint64_t bits(uint64_t index) const;
  // In [0, 1), a multiple of 2^-53.
  double uniform(uint64_t index) const;
  // Standard normal by Box-Muller, in double.
  double normal(uint64_t index) const;
  // In [0, bound); the bias is below bound / 2^64. `bound` is positive.
  uint64_t below(uint64_t bound, uint64_t index) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

// Stable 64-bit hash of a text (FNV-1a): random streams by name.
uint64_t stream_of(const char* text);

}  // namespace faultline
