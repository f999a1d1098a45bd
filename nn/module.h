#pragma once

#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/parameter.h"
#include "core/context.h"
#include "core/state.h"

namespace faultline::nn {

class Module;

// What surrounds the forward pass of a unit. Sharding gathers parameters before and releases them
// after; with one rank both are empty.
struct UnitHooks {
  std::function<void(Module&)> before_forward;
  std::function<void(Module&)> after_forward;
};

// A unit has run forward, for observers. With nobody subscribed it costs one comparison.
struct ForwardEvent {
  const Module& module;
  const Tensor& output;
  // Computes the output anew. The history of `output` is for the backward pass of whoever runs the
  // model, and is used up by one; an observer that wants to differentiate needs its own. The
  // units inside announce themselves again meanwhile: choose a module before calling it.
  const std::function<Tensor()>& again;
};

// A named part of a model with parameters, buffers and children, all of which it owns as members
// and registers in its constructor. Names are paths such as "h.0.attn.qkv.weight".
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // "" for a root.
  const char* path() const { return path_; }

  // Depth first, in the order of registration. A parameter belongs to one module; a tied use asks
  // its owner, as Embedding::project() does.
  std::vector<Parameter*> parameters();
  // This module and everything below it.
  void visit(const std::function<void(Module&)>& visitor);
  void set_hooks(UnitHooks hooks) { hooks_ = std::move(hooks); }

  // Training mode (dropout acts) or evaluation mode, for this module and all below.
  void set_training(bool training);
  bool training() const { return training_; }

  void clear_gradients();

  // Parameters and buffers by name.
  State state();
  // Copies values in. Throws InvalidArgument naming the first missing, unknown or misshapen tensor,
  // before anything was changed.
  void load(const State& state);

 protected:
  // They register a part under a name that no other part of this module has, else they throw
  // InvalidArgument. A parameter begins as f32 zeros; a child has one parent.
  Parameter& add_parameter(const char* name, const Shape& shape, Decay decay);
  Tensor& add_buffer(const char* name, Tensor value);
  void add_child(const std::string& name, Module& child);

  // The parameter's value. Only inside `unit`, where hooks have made it ready.
  const Tensor& use(const Parameter& parameter) const;

  // Runs a forward pass as a unit: hooks before and after (after also when it throws), events and
  // memory are labelled with this module's path, and observers are told of its output.
  template <class Body>
  auto unit(Body&& body) {
    Context& context = Context::current();
    const Scoped<const char*> label(context.module, path_);
    const Scoped<int> open(open_, open_ + 1);
    if (hooks_.before_forward) hooks_.before_forward(*this);
    auto result = [&] {
      try {
        auto output = body();
        if constexpr (std::is_same_v<decltype(output), Tensor>) announce(output, body);
        return output;
      } catch (...) {
        leave();
        throw;
      }
    }();
    leave();
    return result;
  }

 private:
  friend class EvaluationMode;

  template <class Body>
  void announce(const Tensor& output, Body& body) const {
    const EventBus& events = Context::current().events;
    if (!events.wanted<ForwardEvent>()) return;
    const std::function<Tensor()> again = [&body] { return body(); };
    events.emit(ForwardEvent{*this, output, again});
  }
  void set_path(const std::string& path);
  void leave() {
    if (hooks_.after_forward) hooks_.after_forward(*this);
  }
  void check_new_name(const std::string& name) const;

  const char* path_ = "";
  bool has_parent_ = false;
  int open_ = 0;
  bool training_ = true;
  UnitHooks hooks_;
  std::deque<std::pair<std::string, Parameter>> parameters_;  // by their local names
  std::deque<std::pair<std::string, Tensor>> buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
};

// Puts a model into evaluation mode, and each of its modules back into the mode it had.
class [[nodiscard]] EvaluationMode {
 public:
  explicit EvaluationMode(Module& model) {
    model.visit([&](Module& module) { previous_.emplace_back(&module, module.training()); });
    model.set_training(false);
  }
  ~EvaluationMode() {
    for (const auto& [module, training] : previous_) module->training_ = training;
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> previous_;
};

}  // namespace faultline::nn
