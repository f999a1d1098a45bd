#include <algorithm>
#include <optional>
#include <unordered_map>

#include "autograd/functional.h"
#include "autograd/node.h"
#include "autograd/tape.h"
#include "core/context.h"

namespace faultline {

// One backward pass. Nodes run in descending order of their numbers: a node's users all have higher
// numbers, so its output gradients are complete when its turn comes.
class Engine {
 public:
  // With `capture`, the gradients of leaves are kept here and no leaf is touched.
  explicit Engine(bool capture) : capture_(capture) {}

  void run(const Tensor& root, const Tensor& seed) {
    const auto& meta = root.autograd();
    if (meta->producer == nullptr) {
      join_leaf(meta, root, seed);
      return;
    }
    collect(meta->producer);
    add_to(pending_[meta->producer.get()][static_cast<size_t>(meta->output)], seed);
    for (const auto& node : nodes_) process(*node);
  }

  Tensor captured(const Tensor& leaf) const {
    const auto found = leaves_.find(leaf.autograd().get());
    return found == leaves_.end() ? Tensor() : found->second.sum;
  }

 private:
  struct LeafSum {
    Tensor sum;
    int expected = 0;  // contributions still to come
  };

  // Finds every node that the root reaches, and how many contributions each leaf will get.
  void collect(const std::shared_ptr<Node>& root) {
    std::vector<std::shared_ptr<Node>> open{root};
    pending_[root.get()];
    while (!open.empty()) {
      auto node = std::move(open.back());
      open.pop_back();
      require(!node->released,
              "backward: the tape of {} ({}:{}) was already used by an earlier backward; run the "
              "forward pass again",
              node->op->name, node->site.file, node->site.line);
      for (const Node::Edge& edge : node->edges) {
        if (edge.leaf != nullptr) ++leaves_[edge.leaf.get()].expected;
        if (edge.node != nullptr && pending_.try_emplace(edge.node.get()).second) {
          open.push_back(edge.node);
        }
      }
      nodes_.push_back(std::move(node));
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  }

  void process(Node& node) {
    auto output_grads = std::move(pending_[&node]);
    const auto grads =
        std::span<const Tensor>(output_grads).first(static_cast<size_t>(node.op->outputs));
    Context& context = Context::current();
    const Scoped<const char*> module(context.module, node.module);
    for (size_t i = 0; i < grads.size(); ++i) run_hooks(node.hooks[i], grads[i], node.op->name);

    if (std::any_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); })) {
      if (node.restore) node.restore();
      deliver(node, derivative(node, grads));
    } else {
      deliver(node, {});
    }
    release(node);
  }

  static Grads derivative(const Node& node, std::span<const Tensor> grads) {
    for (size_t i = 0; i < node.edges.size(); ++i) {
      const bool wanted = node.edges[i].node != nullptr || node.edges[i].leaf != nullptr;
      require(
          !wanted ||
              (node.op->rules->derivative != nullptr && (node.op->differentiable >> i & 1) != 0),
          "backward: {} ({}:{}{}{}) has no derivative for input {}; use detach() on that input, "
          "or NoGrad",
          node.op->name, node.site.file, node.site.line, *node.module != 0 ? ", in " : "",
          node.module, i);
    }
    Grads result = node.op->rules->derivative(Saved(node), grads);
    invariant(result.size() >= static_cast<int>(node.edges.size()),
              "{}: its derivative gives {} gradients for {} inputs", node.op->name, result.size(),
              node.edges.size());
    return result;
  }

  void deliver(const Node& node, Grads grads) {
    for (size_t i = 0; i < node.edges.size(); ++i) {
      const Node::Edge& edge = node.edges[i];
      if (edge.node == nullptr && edge.leaf == nullptr) continue;
      Tensor grad;
      if (static_cast<int>(i) < grads.size()) {
        grad = fit(std::move(grads[static_cast<int>(i)]), edge);
        grads[static_cast<int>(i)] = {};
      }
      if (edge.leaf != nullptr) {
        join_leaf(edge.leaf, edge.leaf_tensor, std::move(grad));
      } else if (grad.defined()) {
        add_to(pending_[edge.node.get()][static_cast<size_t>(edge.output)], std::move(grad));
      }
    }
  }

  // The one place that undoes broadcasting and autocast.
  static Tensor fit(Tensor grad, const Node::Edge& edge) {
    if (!grad.defined()) return grad;
    if (!(grad.shape() == edge.shape)) grad = sum_to(grad, edge.shape);
    return grad.dtype() == edge.dtype ? grad : cast(grad, edge.dtype);
  }

  // Never writes into memory that somebody else can see.
  static void add_to(Tensor& sum, Tensor grad) {
    if (!sum.defined()) {
      sum = std::move(grad);
    } else if (sum.is_exclusive() && sum.is_contiguous()) {
      accumulate_(sum, grad);
    } else {
      sum = add(sum, grad);
    }
  }

  void join_leaf(const std::shared_ptr<AutogradMeta>& leaf, const Tensor& tensor, Tensor grad) {
    LeafSum& entry = leaves_[leaf.get()];
    if (grad.defined()) add_to(entry.sum, std::move(grad));
    if (--entry.expected > 0 || !entry.sum.defined()) return;
    run_hooks(leaf->hooks, entry.sum, leaf->name.c_str());
    if (capture_) return;
    const Context& context = Context::current();
    const bool first = !leaf->gradient.defined();
    const Tensor contribution = context.events.wanted<GradientEvent>() ? entry.sum : Tensor();
    // Moved out, so that the leaf's own handle does not count as somebody else.
    Tensor held = std::move(leaf->gradient);
    try {
      leaf->gradient = context.seams.call<AccumulateSeam>(held, std::move(entry.sum));
    } catch (...) {
      leaf->gradient = std::move(held);
      throw;
    }
    entry.sum = {};
    if (contribution.defined()) {
      context.events.emit(GradientEvent{leaf->name, tensor, contribution, leaf->gradient, first});
    }
  }

  static void run_hooks(const std::vector<GradientHook>& hooks, const Tensor& grad,
                        const char* of) {
    if (!grad.defined()) return;
    for (const GradientHook& hook : hooks) {
      const uint32_t version = grad.version();
      hook(grad);
      require(grad.version() == version,
              "backward: a hook on {} changed the gradient in place ({}); a hook may only look", of,
              grad.last_writer());
    }
  }

  static void release(Node& node) {
    node.released = true;
    node.restore = nullptr;
    for (Node::Kept& kept : node.inputs) kept = {};
    for (Node::Kept& kept : node.outputs) kept = {};
  }

  bool capture_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::unordered_map<const Node*, std::array<Tensor, kMaxOutputs>> pending_;
  std::unordered_map<const AutogradMeta*, LeafSum> leaves_;
};

namespace {

// How a derivative's ops run: off the tape, and in the precision of the forward pass, which is that
// of the tensors it saved.
class BackwardMode {
 public:
  explicit BackwardMode(Context& context)
      : phase_(context.phase, Phase::backward), autocast_off_(context.autocast, std::nullopt) {}

 private:
  NoGrad gradients_off_;
  Scoped<Phase> phase_;
  Scoped<std::optional<DType>> autocast_off_;
};

Tensor seed_of(const Tensor& root, const Tensor& seed) {
  require(requires_grad(root), "backward: {} does not require a gradient", root);
  if (seed.defined()) {
    require(seed.shape() == root.shape() && seed.dtype() == root.dtype(),
            "backward: the seed is {} for a root {}; it needs the same shape and dtype", seed,
            root);
    return seed;
  }
  require(root.numel() == 1, "backward: {} needs a seed (only a single element has the default 1)",
          root);
  return full(root.shape(), 1, root.dtype());
}

}  // namespace

void backward(const Tensor& root, const Tensor& seed) {
  Context::current().events.emit(BackwardEvent{root});
  const BackwardMode mode(Context::current());
  Engine(/*capture=*/false).run(root, seed_of(root, seed));
}

std::vector<Tensor> gradients(const Tensor& output, std::span<const Tensor> leaves,
                              const Tensor& seed) {
  const BackwardMode mode(Context::current());
  for (const Tensor& leaf : leaves) {
    require(requires_grad(leaf) && leaf.autograd()->producer == nullptr,
            "gradients: {} is not a leaf that requires a gradient", leaf);
  }
  Engine engine(/*capture=*/true);
  engine.run(output, seed_of(output, seed));
  std::vector<Tensor> result;
  for (const Tensor& leaf : leaves) {
    const Tensor found = engine.captured(leaf);
    // Cloned: it may share memory with another leaf's gradient, or be the seed.
    result.push_back(found.defined() ? clone(found) : zeros(leaf.shape(), leaf.dtype()));
  }
  return result;
}

}  // namespace faultline
