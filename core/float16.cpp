#include "core/float16.h"

#include <bit>

namespace faultline {
namespace {

// Rounds the magnitude of a double (sign removed) to a format with `significand_bits` stored bits
// and the exponent bias `bias`, to nearest even, and returns the bits without a sign.
// Integer arithmetic on the bits: a carry out of the significand moves to the exponent by itself,
// and out of the largest finite number it becomes infinity.
uint16_t round_magnitude(uint64_t magnitude, int significand_bits, int bias, int exponent_bits) {
  const int max_exponent = (1 << exponent_bits) - 1;
  const auto infinity = static_cast<uint16_t>(max_exponent << significand_bits);
  constexpr uint64_t kHidden = uint64_t{1} << 52;
  const int exponent = static_cast<int>(magnitude >> 52) - 1023 + bias;
  const uint64_t significand = (magnitude & (kHidden - 1)) | kHidden;
  if (exponent >= max_exponent) return infinity;

  // A subnormal result keeps fewer bits: one less for each step below the smallest exponent.
  int drop = 52 - significand_bits;
  if (exponent <= 0) drop += 1 - exponent;
  if (drop > 53) return 0;
  const uint64_t kept = significand >> drop;
  const uint64_t rest = significand & ((uint64_t{1} << drop) - 1);
  const uint64_t half = uint64_t{1} << (drop - 1);
  const uint64_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  const uint64_t rounded = kept + up;
  if (exponent <= 0) return static_cast<uint16_t>(rounded);
  // `rounded` still holds the hidden bit, worth one exponent.
  const uint64_t base = static_cast<uint64_t>(exponent - 1) << significand_bits;
  return static_cast<uint16_t>(base + rounded);
}

uint16_t round_double(double value, int significand_bits, int bias, int exponent_bits) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 63 << 15);
  const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
  constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52;
  if (magnitude > kInfinity) {
    const auto payload = static_cast<uint16_t>((magnitude >> (52 - significand_bits)) &
                                               ((1U << significand_bits) - 1));
    const auto quiet = static_cast<uint16_t>(1U << (significand_bits - 1));
    const auto exponent = static_cast<uint16_t>(((1U << exponent_bits) - 1) << significand_bits);
    return static_cast<uint16_t>(sign | exponent | quiet | payload);
  }
  // A double's own subnormals are far below half the smallest 16-bit number.
  if (magnitude < (uint64_t{1} << 52)) return sign;
  return static_cast<uint16_t>(sign |
                               round_magnitude(magnitude, significand_bits, bias, exponent_bits));
}

}  // namespace

// A float is exactly a double, so both constructors share one rounding.
float16::float16(double value) : bits(round_double(value, 10, 15, 5)) {}
float16::float16(float value) : float16(static_cast<double>(value)) {}
bfloat16::bfloat16(double value) : bits(round_double(value, 7, 127, 8)) {}
bfloat16::bfloat16(float value) : bfloat16(static_cast<double>(value)) {}

float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits >> 15) << 31;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t significand = bits & 0x3ff;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000U | (significand << 13));
  }
  if (exponent == 0) {
    // significand * 2^-24 is exact in float.
    const float magnitude = static_cast<float>(significand) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (significand << 13));
}

}  // namespace faultline
