#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "core/type_key.h"

namespace faultline {

// The scalar arguments of a launch: one trivially copyable struct, stored by value and read back
// only as the type that was stored.
class Attributes {
 public:
  static constexpr size_t kCapacity = 96;

  Attributes() = default;

  template <class T>
  requires(!std::same_as<T, Attributes>) Attributes(const T& value)
      : type_(type_key<T>()) {  // NOLINT: a struct is its attributes
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kCapacity &&
                  alignof(T) <= alignof(std::max_align_t));
    std::memcpy(bytes_.data(), &value, sizeof(T));
  }

  template <class T>
  T as() const {
    invariant(type_ == type_key<T>(), "attributes: a kernel reads another type than was stored");
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    return value;
  }

 private:
  const void* type_ = nullptr;
  alignas(std::max_align_t) std::array<std::byte, kCapacity> bytes_{};
};

}  // namespace faultline
