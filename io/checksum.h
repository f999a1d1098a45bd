#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace faultline {

// XXH64 with seed 0: finds damage, is no protection against intent.
uint64_t xxh64(std::span<const std::byte> bytes);
uint64_t xxh64(std::string_view bytes);

// Sixteen lower-case hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace faultline
