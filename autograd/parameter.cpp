#include "autograd/parameter.h"

namespace faultline {

Parameter::Parameter(std::string name, Tensor value, Decay decay)
    : name_(std::move(name)), decay_(decay) {
  set_value(std::move(value));
}

void Parameter::rename(std::string name) {
  name_ = std::move(name);
  if (value_.autograd() != nullptr) value_.autograd()->name = name_;
}

void Parameter::set_value(Tensor value) {
  set_requires_grad(value, trainable_);
  value.autograd()->name = name_;
  value_ = std::move(value);
}

void Parameter::set_trainable(bool trainable) {
  trainable_ = trainable;
  set_requires_grad(value_, trainable);
}

}  // namespace faultline
