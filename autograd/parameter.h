#pragma once

#include <string>

#include "autograd/tape.h"

namespace faultline {

// Whether the optimizer's weight decay pulls a parameter towards zero. Part of the parameter, so
// that the policy is written where the parameter is made and not guessed from its name.
enum class Decay : uint8_t { yes, no };

// A trained tensor with a name. The value is a handle that may be exchanged: a sharded trainer puts
// the gathered tensor in before a module's forward and takes it out after. Modules reach it only
// through Module::use().
class Parameter {
 public:
  Parameter(std::string name, Tensor value, Decay decay);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  void rename(std::string name);
  Decay decay() const { return decay_; }
  const Tensor& value() const { return value_; }
  // Exchanges the value; it collects a gradient if the parameter is trainable. Throws
  // InvalidArgument, and keeps the old one, for integers and for results of ops.
  void set_value(Tensor value);

  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable);

  // Undefined before the first backward.
  Tensor gradient() const { return faultline::gradient(value_); }
  void clear_gradient() { faultline::clear_gradient(value_); }

 private:
  std::string name_;
  Tensor value_;
  Decay decay_;
  bool trainable_ = true;
};

}  // namespace faultline
