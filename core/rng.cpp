#include "core/rng.h"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>

namespace faultline {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const r123::Philox4x32 generator;
  r123::Philox4x32::ctr_type c = {{counter[0], counter[1], counter[2], counter[3]}};
  r123::Philox4x32::key_type k = {{key[0], key[1]}};
  const auto result = generator(c, k);
  return {result[0], result[1], result[2], result[3]};
}

namespace {
uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
double to_unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }
uint64_t join(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) << 32 | b; }
}  // namespace

uint64_t RandomSequence::bits(uint64_t index) const {
  const auto r =
      philox({low(index), high(index), low(stream_), high(stream_)}, {low(seed_), high(seed_)});
  return join(r[0], r[1]);
}

double RandomSequence::uniform(uint64_t index) const { return to_unit(bits(index)); }

double RandomSequence::normal(uint64_t index) const {
  const auto r =
      philox({low(index), high(index), low(stream_), high(stream_)}, {low(seed_), high(seed_)});
  // 1 - u is in (0, 1], so the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - to_unit(join(r[0], r[1]))));
  return radius * std::cos(2.0 * std::numbers::pi * to_unit(join(r[2], r[3])));
}

uint64_t RandomSequence::below(uint64_t bound, uint64_t index) const {
  // The upper half of bits * bound; the bias is below bound / 2^64.
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

uint64_t stream_of(const char* text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char* c = text; *c != '\0'; ++c) {
    hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace faultline
