#include "io/finite.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "io/file_bytes.h"
#include "io/json.h"

namespace faultline {
namespace {

// How a dtype says that a number is none: all bits of the exponent are set.
template <class Bits>
struct FloatBits {
  Bits exponent;
  Bits fraction;
};

// Index of the first element that is not finite, -1 for none. A block is judged as a whole first:
// that loop has no branch.
template <class Bits>
int64_t first_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  constexpr size_t kBlock = 1024;
  Bits block[kBlock];
  const size_t count = bytes.size() / sizeof(Bits);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = std::min(kBlock, count - begin);
    std::memcpy(block, bytes.data() + begin * sizeof(Bits), length * sizeof(Bits));
    std::fill(block + length, block + kBlock, Bits{0});
    Bits found = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      found |= static_cast<Bits>((block[i] & exponent) == exponent);
    }
    if (found == 0) continue;
    const auto* at = std::find_if(block, block + length,
                                  [&](Bits bits) { return (bits & exponent) == exponent; });
    return static_cast<int64_t>(begin) + (at - block);
  }
  return -1;
}

template <class Bits>
void check(const Tensor& tensor, FloatBits<Bits> dtype, const std::string& file,
           const std::string& name) {
  const FileBytes elements(tensor);
  const int64_t at = first_not_finite<Bits>(elements.bytes(), dtype.exponent);
  if (at < 0) return;
  Bits bits = 0;
  std::memcpy(&bits, elements.bytes().data() + static_cast<size_t>(at) * sizeof(Bits),
              sizeof(Bits));
  const char* value = (bits & dtype.fraction) != 0 ? "NaN" : "infinity";
  fail(
      "{}: tensor {} holds {} (element {} of {}); a model with such a weight computes nothing. Take "
      "a copy that is not damaged, or one from before the training diverged",
      file, json_quoted(name), value, at, tensor.numel());
}

}  // namespace

void require_finite(const Tensor& tensor, const std::string& file, const std::string& name) {
  switch (tensor.dtype()) {
    case DType::f16:
      return check<uint16_t>(tensor, {0x7C00, 0x03FF}, file, name);
    case DType::bf16:
      return check<uint16_t>(tensor, {0x7F80, 0x007F}, file, name);
    case DType::f32:
      return check<uint32_t>(tensor, {0x7F800000, 0x007FFFFF}, file, name);
    case DType::f64:
      return check<uint64_t>(tensor, {0x7FF0000000000000, 0x000FFFFFFFFFFFFF}, file, name);
    default:
      return;
  }
}

}  // namespace faultline
