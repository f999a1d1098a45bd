#pragma once

namespace faultline {

template <class T>
struct TypeKey {
  static constexpr char kAddress = 0;
};

// One address per type: the key of seams, events and attributes.
template <class T>
constexpr const void* type_key() {
  return &TypeKey<T>::kAddress;
}

}  // namespace faultline
