#include "nn/checkpoint.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "core/context.h"

namespace faultline::nn {
namespace {

using Nodes = std::vector<std::shared_ptr<Node>>;

// The tape entries behind `result` that were made since number `first`, in the order of making.
Nodes nodes_since(uint64_t first, const Tensor& result) {
  Nodes found;
  const auto visit = [&](const std::shared_ptr<Node>& node) {
    if (node == nullptr || node->sequence < first) return;
    if (std::find(found.begin(), found.end(), node) == found.end()) found.push_back(node);
  };
  if (result.autograd() != nullptr) visit(result.autograd()->producer);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<Node::Edge>& edges = found[i]->edges;
    for (const Node::Edge& edge : edges) visit(edge.node);
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return found;
}

// How the segment ran, so that it can run so again.
struct Setting {
  explicit Setting(const Context& context)
      : autocast(context.autocast), module(context.module), phase(context.phase) {}
  std::optional<DType> autocast;
  const char* module;
  Phase phase;
};

class Segment {
 public:
  explicit Segment(std::function<Tensor()> run)
      : run_(std::move(run)), setting_(Context::current()) {}

  void forget(const Nodes& nodes, const std::shared_ptr<Segment>& self) {
    for (const auto& node : nodes) {
      nodes_.push_back(node);
      for (Node::Kept& kept : node->inputs) kept = {};
      for (Node::Kept& kept : node->outputs) kept = {};
      node->restore = [self] { self->restore(); };
    }
  }

  void restore() {
    if (std::exchange(restored_, true)) return;
    Context& context = Context::current();
    const Scoped<bool> on(context.gradients, true);
    const Scoped<std::optional<DType>> autocast(context.autocast, setting_.autocast);
    const Scoped<const char*> module(context.module, setting_.module);
    const Scoped<Phase> phase(context.phase, setting_.phase);
    const uint64_t first = context.next_sequence;
    context.events.emit(RecomputeBeginEvent{});
    const Tensor again = run_();
    context.events.emit(RecomputeEndEvent{});
    give_back(nodes_since(first, again));
  }

 private:
  void give_back(const Nodes& made) {
    require(made.size() == nodes_.size(),
            "checkpoint: the segment made {} tape entries, and {} when it ran again; it must do "
            "the same twice",
            nodes_.size(), made.size());
    for (size_t i = 0; i < made.size(); ++i) {
      const std::shared_ptr<Node> node = nodes_[i].lock();
      if (node == nullptr || node->released) continue;
      require(node->op == made[i]->op, "checkpoint: the segment ran {} where it had run {}",
              made[i]->op->name, node->op->name);
      node->inputs = std::move(made[i]->inputs);
      node->outputs = std::move(made[i]->outputs);
    }
  }

  std::function<Tensor()> run_;
  Setting setting_;
  std::vector<std::weak_ptr<Node>> nodes_;  // which hold the segment
  bool restored_ = false;
};

}  // namespace

Tensor checkpoint(std::function<Tensor()> segment) {
  const uint64_t first = Context::current().next_sequence;
  const Tensor result = segment();
  const auto kept = std::make_shared<Segment>(std::move(segment));
  kept->forget(nodes_since(first, result), kept);
  return result;
}

}  // namespace faultline::nn
