#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/op.h"

namespace faultline {

struct Node;

// Hooks see a gradient when it is complete, before it moves on. They cannot change it: writing to
// it throws.
using GradientHook = std::function<void(const Tensor& gradient)>;

// The gradient side of a tensor.
struct AutogradMeta {
  std::shared_ptr<Node> producer;  // null for a leaf
  int output = 0;                  // which output of the producer
  bool requires_grad = false;      // leaves only
  Tensor gradient;                 // leaves only
  std::string name;                // for errors and reports
  std::vector<GradientHook> hooks;
};

// Whether a gradient would flow to this tensor.
bool requires_grad(const Tensor& tensor);
// Makes a leaf collect a gradient (or stop). Throws InvalidArgument for integer tensors and for
// results of ops.
void set_requires_grad(const Tensor& tensor, bool value = true);
// The collected gradient of a leaf, undefined before the first backward.
Tensor gradient(const Tensor& leaf);
// Lets go of the collected gradient: the next backward starts anew.
void clear_gradient(const Tensor& leaf);
// Calls `hook` in every backward that reaches the tensor. Throws InvalidArgument when no gradient
// would flow to it.
void add_gradient_hook(const Tensor& tensor, GradientHook hook);

// How a new contribution joins the gradient that a leaf already holds. `held` may be undefined.
// Returns the new gradient.
struct AccumulateSeam {
  static constexpr const char* name = "gradient accumulation";
  using Signature = Tensor(const Tensor& held, const Tensor& contribution);
  // held + contribution in the dtype of held; in place only where nobody else can see `held`.
  static Tensor standard(const Tensor& held, const Tensor& contribution);
};

// Runs the tape backward from `root`, adding to the gradients of the leaves. `seed` is the gradient
// of root; it may be left out for a single element (then it is 1). Iterative, in descending order
// of the nodes' numbers. The tape is released as it is used; a second backward over it throws.
void backward(const Tensor& root, const Tensor& seed = {});

// Emitted before a backward pass begins.
struct BackwardEvent {
  const Tensor& root;
};

// Emitted when one backward pass has joined its contribution to the gradient of a leaf.
struct GradientEvent {
  const std::string& name;  // of the leaf
  const Tensor& leaf;
  const Tensor& contribution;  // may share memory with `gradient` when `first`
  const Tensor& gradient;      // what the leaf holds now
  bool first;                  // the leaf held nothing before
};

// The gradients of `output` with respect to `leaves`, each in memory of its own, without touching
// what any leaf holds; zeros where there is no path. The tape is released as by backward. Throws
// InvalidArgument for a tensor that is not a leaf that requires a gradient.
std::vector<Tensor> gradients(const Tensor& output, std::span<const Tensor> leaves,
                              const Tensor& seed = {});

// For tools: the op that made this tensor ("" for a leaf).
const char* producer_name(const Tensor& tensor);

}  // namespace faultline
