#include "nn/module.h"

#include <algorithm>

#include "autograd/functional.h"
#include "core/intern.h"

namespace faultline::nn {
namespace {
std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}
}  // namespace

void Module::check_new_name(const std::string& name) const {
  const auto taken = [&](const auto& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const auto& part) { return part.first == name; });
  };
  require(!taken(parameters_) && !taken(buffers_) && !taken(children_),
          "module '{}': it has a part '{}' already; a checkpoint needs a name for each", path_,
          name);
}

Parameter& Module::add_parameter(const char* name, const Shape& shape, Decay decay) {
  check_new_name(name);
  // `deque` because a Parameter's address is its identity.
  return parameters_
      .emplace_back(std::piecewise_construct, std::forward_as_tuple(name),
                    std::forward_as_tuple(join(path_, name), zeros(shape), decay))
      .second;
}

Tensor& Module::add_buffer(const char* name, Tensor value) {
  check_new_name(name);
  return buffers_.emplace_back(name, std::move(value)).second;
}

void Module::add_child(const std::string& name, Module& child) {
  check_new_name(name);
  require(!child.has_parent_,
          "module '{}': '{}' has a parent already; for a tied weight call its owner", path_,
          child.path_);
  child.has_parent_ = true;
  children_.emplace_back(name, &child);
  child.set_path(join(path_, name));
}

void Module::set_path(const std::string& path) {
  path_ = intern(path);
  for (auto& [name, parameter] : parameters_) parameter.rename(join(path, name));
  for (auto& [name, child] : children_) child->set_path(join(path, name));
}

const Tensor& Module::use(const Parameter& parameter) const {
  invariant(open_ > 0, "module '{}': parameter {} is used outside of the module's unit", path_,
            parameter.name());
  return parameter.value();
}

void Module::visit(const std::function<void(Module&)>& visitor) {
  visitor(*this);
  for (auto& [name, child] : children_) child->visit(visitor);
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> result;
  visit([&](Module& module) {
    for (auto& [name, parameter] : module.parameters_) result.push_back(&parameter);
  });
  return result;
}

void Module::set_training(bool training) {
  visit([&](Module& module) { module.training_ = training; });
}

void Module::clear_gradients() {
  for (Parameter* parameter : parameters()) parameter->clear_gradient();
}

State Module::state() {
  State state;
  visit([&](Module& module) {
    for (auto& [name, parameter] : module.parameters_) {
      state.tensors[parameter.name()] = parameter.value().detach();
    }
    for (auto& [name, buffer] : module.buffers_) state.tensors[join(module.path_, name)] = buffer;
  });
  return state;
}

void Module::load(const State& given) {
  const State own = state();
  for (const auto& [name, tensor] : own.tensors) {
    const Tensor& value = given.tensor(name);
    require(value.shape() == tensor.shape(), "model: '{}' is {} here and {} in the state", name,
            tensor, value);
  }
  for (const auto& [name, tensor] : given.tensors) {
    require(own.tensors.contains(name), "model: the state holds '{}' ({}), which this model lacks",
            name, tensor);
  }
  const NoGrad off;
  for (const auto& [name, tensor] : own.tensors) copy_(tensor, given.tensor(name));
}

}  // namespace faultline::nn
