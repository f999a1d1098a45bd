#include "autograd/tape.h"

#include "autograd/functional.h"
#include "autograd/node.h"
#include "core/context.h"
#include "kernels/kernels.h"

namespace faultline {

bool requires_grad(const Tensor& tensor) {
  const auto& meta = tensor.autograd();
  return meta != nullptr && (meta->requires_grad || meta->producer != nullptr);
}

namespace {

AutogradMeta& leaf_meta(const Tensor& tensor, const char* what) {
  const auto& meta = tensor.autograd();
  if (meta == nullptr) {
    tensor.set_autograd(std::make_shared<AutogradMeta>());
    return *tensor.autograd();
  }
  require(meta->producer == nullptr,
          "{}: this tensor is the result of {}; only a leaf holds a gradient (use detach())", what,
          producer_name(tensor));
  return *meta;
}

}  // namespace

void set_requires_grad(const Tensor& tensor, bool value) {
  require(is_floating(tensor.dtype()),
          "requires_grad: {} cannot have a gradient; use a float dtype", tensor);
  leaf_meta(tensor, "requires_grad").requires_grad = value;
}

Tensor gradient(const Tensor& leaf) { return leaf_meta(leaf, "gradient").gradient; }

void clear_gradient(const Tensor& leaf) { leaf_meta(leaf, "clear_gradient").gradient = {}; }

void add_gradient_hook(const Tensor& tensor, GradientHook hook) {
  require(requires_grad(tensor), "add_gradient_hook: {} has no gradient", tensor);
  AutogradMeta& meta = *tensor.autograd();
  if (meta.producer == nullptr) {
    meta.hooks.push_back(std::move(hook));
  } else {
    meta.producer->hooks[static_cast<size_t>(meta.output)].push_back(std::move(hook));
  }
}

const char* producer_name(const Tensor& tensor) {
  const auto& meta = tensor.autograd();
  return meta != nullptr && meta->producer != nullptr ? meta->producer->op->name : "";
}

Node::~Node() {
  // A long chain of nodes must not be destroyed by recursion: whatever this node keeps alive is
  // handed to the outermost destructor, which takes it apart in a loop.
  thread_local std::vector<std::shared_ptr<Node>> nodes;
  thread_local std::vector<Tensor> tensors;
  thread_local bool draining = false;
  for (Edge& edge : edges) {
    if (edge.node != nullptr) nodes.push_back(std::move(edge.node));
  }
  for (Kept& kept : inputs) {
    if (kept.tensor.defined()) tensors.push_back(std::move(kept.tensor));
  }
  if (draining) return;
  draining = true;
  while (!nodes.empty() || !tensors.empty()) {
    if (!nodes.empty()) {
      const auto last = std::move(nodes.back());
      nodes.pop_back();
    } else {
      const Tensor last = std::move(tensors.back());
      tensors.pop_back();
    }
  }
  draining = false;
}

namespace {

const Tensor& read_kept(const Node& node, const Node::Kept& kept, const char* what, int i) {
  invariant(kept.tensor.defined(), "{}: its derivative reads {} {}, which its row does not save",
            node.op->name, what, i);
  require(kept.tensor.version() == kept.version,
          "backward: {} {} of {} ({}:{}) was changed in place by {} after {} saved it; write to a "
          "copy, or do it after backward",
          what, i, node.op->name, node.site.file, node.site.line, kept.tensor.last_writer(),
          node.op->name);
  return kept.tensor;
}

}  // namespace

const Tensor& Saved::input(int i) const { return read_kept(node_, node_.inputs[i], "input", i); }
const Tensor& Saved::output(int i) const { return read_kept(node_, node_.outputs[i], "output", i); }
const Attributes& Saved::attributes() const { return node_.attributes; }
bool Saved::wants(int i) const {
  if (i >= static_cast<int>(node_.edges.size())) return false;
  const Node::Edge& edge = node_.edges[static_cast<size_t>(i)];
  return edge.node != nullptr || edge.leaf != nullptr;
}
const Shape& Saved::input_shape(int i) const { return node_.edges[static_cast<size_t>(i)].shape; }
DType Saved::input_dtype(int i) const { return node_.edges[static_cast<size_t>(i)].dtype; }
bool Saved::has_input(int i) const {
  return i < static_cast<int>(node_.edges.size()) && node_.edges[static_cast<size_t>(i)].given;
}

Tensor AccumulateSeam::standard(const Tensor& held, const Tensor& contribution) {
  if (!held.defined()) {
    return contribution.is_exclusive() && contribution.is_contiguous() ? contribution
                                                                       : clone(contribution);
  }
  if (!held.is_exclusive()) return add(held, contribution);
  accumulate_(held, contribution);
  return held;
}

}  // namespace faultline
