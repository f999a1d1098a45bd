#pragma once

#include <bit>
#include <cstdint>

namespace faultline {

// IEEE binary16 (fp16): 5 exponent bits, 11 bits of significand, largest finite 65504.
// Conversions round to nearest, ties to even; overflow gives infinity; a NaN stays a quiet NaN
// with its sign and the upper bits of its payload.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  explicit float16(float value);
  // Rounds once, straight from double: going through float would round twice.
  explicit float16(double value);
  explicit operator float() const;
  explicit operator double() const { return static_cast<float>(*this); }

  static constexpr float16 from_bits(uint16_t bits) {
    float16 result;
    result.bits = bits;
    return result;
  }
};

// bfloat16: the upper half of a float. 8 bits of significand, the range of a float.
// The same rounding and NaN rules as float16.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value);
  explicit bfloat16(double value);
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  explicit operator double() const { return static_cast<float>(*this); }

  static constexpr bfloat16 from_bits(uint16_t bits) {
    bfloat16 result;
    result.bits = bits;
    return result;
  }
};

}  // namespace faultline
