#pragma once

#include <functional>

#include "autograd/tape.h"

namespace faultline {

// A tape entry: one application of an op whose gradient may be asked for.
struct Node {
  // Where the gradient of an input goes: to an earlier node, or to a leaf.
  struct Edge {
    std::shared_ptr<Node> node;
    int output = 0;
    std::shared_ptr<AutogradMeta> leaf;
    Tensor leaf_tensor;  // the leaf's handle, for events and hooks
    Shape shape;
    DType dtype = DType::f32;
    bool given = false;
  };
  struct Kept {
    Tensor tensor;
    uint32_t version = 0;
  };

  const OpDefinition* op = nullptr;
  uint64_t sequence = 0;
  Attributes attributes;
  std::vector<Edge> edges;
  std::array<Kept, kMaxInputs> inputs;
  std::array<Kept, kMaxOutputs> outputs;
  std::array<OutputSpec, kMaxOutputs> specs;
  std::array<std::vector<GradientHook>, kMaxOutputs> hooks;
  const char* module = "";
  Site site;
  bool released = false;
  // Brings back `inputs` and `outputs` where they were not kept; called before the derivative.
  std::function<void()> restore;

  ~Node();
};

}  // namespace faultline
