#include "io/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

namespace faultline {

uint64_t xxh64(std::span<const std::byte> bytes) { return XXH64(bytes.data(), bytes.size(), 0); }
uint64_t xxh64(std::string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace faultline
