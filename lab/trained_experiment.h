#pragma once

#include "autograd/functional.h"
#include "lab/experiment.h"
#include "optim/optimizer.h"

namespace faultline::lab {

// An experiment whose state is an optimizer's: the parameters that it moves, and what it remembers.
class TrainedExperiment : public Experiment {
 public:
  State state() override {
    State state;
    for (const Parameter* parameter : parameters()) {
      state.tensors["parameters." + parameter->name()] = parameter->value();
    }
    state.add("optimizer", optimizer().state());
    return state;
  }
  void load(const State& state) override {
    for (const Parameter* parameter : parameters()) {
      copy_(parameter->value().detach(), state.tensor("parameters." + parameter->name()));
    }
    optimizer().load(state.part("optimizer"));
  }

 protected:
  virtual optim::Optimizer& optimizer() = 0;

  // All that it moves, in the order of its groups.
  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all;
    for (const optim::ParameterGroup& group : optimizer().groups()) {
      all.insert(all.end(), group.parameters.begin(), group.parameters.end());
    }
    return all;
  }
};

}  // namespace faultline::lab
