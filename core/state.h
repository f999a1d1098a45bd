#pragma once

#include <map>
#include <string>

#include "core/tensor.h"

namespace faultline {

// What an owner (model, optimizer, sampler, ...) needs to continue bitwise: named tensors and named
// texts. Every owner turns itself into one and back; io/ stores it and knows no owner.
// Integers are written in decimal, doubles with round-trip digits.
struct State {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> values;

  // Adds everything of `other` under "prefix." + name.
  void add(const std::string& prefix, const State& other);
  // The part under "prefix.", with the prefix removed.
  State part(const std::string& prefix) const;

  // The value of that name. Throws InvalidArgument naming it when it is absent or not such a
  // number.
  int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  const Tensor& tensor(const std::string& name) const;
  void set_integer(const std::string& name, int64_t value);
  void set_real(const std::string& name, double value);
};

}  // namespace faultline
