#include <cmath>

#include "nn/lora.h"

namespace faultline::nn {

Tensor LoraMergeSeam::standard(const Tensor& weight, const Tensor& product) {
  return cast(cast(weight, product.dtype()) + product, weight.dtype());
}

namespace {

std::vector<LoraAdapter*> active_adapters(const Linear& layer) {
  std::vector<LoraAdapter*> active;
  for (const auto& adapter : layer.adapters()) {
    if (adapter->role() == AdapterRole::active) active.push_back(adapter.get());
  }
  return active;
}

// The layers with active adapters. Throws unless all of them can be merged.
std::vector<Linear*> layers_to_merge(Module& model) {
  std::vector<Linear*> layers;
  model.visit([&](Module& module) {
    auto* layer = dynamic_cast<Linear*>(&module);
    if (layer == nullptr) return;
    for (const auto& adapter : layer->adapters()) {
      require(adapter->role() != AdapterRole::merged,
              "merge: {} is in the weight of {} already; merged again it would count twice. "
              "Unmerge it first",
              adapter->path(), layer->path());
    }
    if (!active_adapters(*layer).empty()) layers.push_back(layer);
  });
  require(!layers.empty(), "merge: the model has no active adapter");
  return layers;
}

// The sum of the active adapters' products, [out, in].
Tensor product_of(const Linear& layer) {
  Tensor sum;
  for (const LoraAdapter* adapter : active_adapters(layer)) {
    const Tensor product = adapter->product();
    require(all_finite(product), "merge: the product of {} holds a value that is not finite",
            adapter->path());
    sum = sum.defined() ? sum + product : product;
  }
  return sum;
}

LayerMerge compare(const std::string& layer, const Tensor& before, const Tensor& after,
                   const Tensor& product) {
  LayerMerge result{layer};
  const auto old = before.to_vector<double>();
  const auto now = after.to_vector<double>();
  const auto added = product.to_vector<double>();
  double kept = 0;
  double whole = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    if (added[i] == 0) continue;
    ++result.elements;
    if (now[i] == old[i]) ++result.unchanged;
    kept += (now[i] - old[i]) * added[i];
    whole += added[i] * added[i];
  }
  result.survived = whole == 0 ? 1 : kept / whole;
  return result;
}

}  // namespace

Merge merge_adapters(Module& model, Originals originals) {
  const NoGrad off;
  const std::vector<Linear*> layers = layers_to_merge(model);
  std::vector<Tensor> merged;
  Merge result;
  for (Linear* layer : layers) {
    const Tensor& weight = layer->weight().value();
    const Tensor product = product_of(*layer);
    const Context& context = Context::current();
    merged.push_back(context.seams.call<LoraMergeSeam>(weight.detach(), product));
    context.events.emit(MergeEvent{*layer, weight, product, merged.back()});
    result.layers.push_back(compare(layer->path(), weight, merged.back(), product));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const Tensor& weight = layers[i]->weight().value();
    if (originals == Originals::keep) result.originals.emplace_back(layers[i], clone(weight));
    copy_(weight, merged[i]);
    for (LoraAdapter* adapter : active_adapters(*layers[i])) adapter->set_role(AdapterRole::merged);
  }
  return result;
}

void unmerge_adapters(const Merge& merge) {
  require(
      merge.originals.size() == merge.layers.size(),
      "unmerge: the weights before the merge were not kept; merge with Originals::keep, or load "
      "the base again");
  const NoGrad off;
  for (const auto& [layer, weight] : merge.originals) {
    copy_(layer->weight().value(), weight);
    for (const auto& adapter : layer->adapters()) {
      if (adapter->role() == AdapterRole::merged) adapter->set_role(AdapterRole::active);
    }
  }
}

}  // namespace faultline::nn
