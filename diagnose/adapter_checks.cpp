#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "diagnose/attention_checks.h"
#include "diagnose/model_runs.h"
#include "diagnose/values.h"
#include "nn/lora.h"

namespace faultline::diagnose {
namespace {

std::vector<nn::LoraAdapter*> adapters_in(nn::LanguageModel& model) {
  std::vector<nn::LoraAdapter*> found;
  model.visit([&](nn::Module& module) {
    if (auto* adapter = dynamic_cast<nn::LoraAdapter*>(&module)) found.push_back(adapter);
  });
  return found;
}

// Of an adapter made anew: A [3, 5] takes 60 bytes in f32, so that what lies right behind it begins
// at no multiple of 16.
const Shape kSmallA{3, 5};
const Shape kSmallB{4, 3};

double due_scale(const nn::LoraShape& shape) {
  const auto rank = static_cast<double>(shape.rank);
  return shape.alpha / (shape.scaling == nn::LoraScaling::by_rank ? rank : std::sqrt(rank));
}

bool is_zero(const Tensor& x) {
  const auto values = x.to_vector<double>();
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

bool is_off_16_bytes(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.view().data) % 16 != 0;
}

}  // namespace

AttentionCheck check_adapter_scale(nn::LanguageModel& model) {
  AttentionCheck check{.id = "adapter.scale",
                       .compared = "factors of adapters, and by rank, alpha and rule (relative)",
                       .bound = 4 * 0x1p-53,
                       .reason = "a root and a division in f64",
                       .proven = true};
  const auto compare = [&](const nn::LoraShape& shape, double scale) {
    const double due = due_scale(shape);
    const double apart = std::abs(scale - due) / std::abs(due);
    check.difference = larger_or_nan(check.difference, apart);
    if (apart <= check.bound || !check.what.empty()) return;
    check.what = fmt::format("With r = {} and alpha = {:g}, {:g} acts where {:g} is due.",
                             shape.rank, shape.alpha, scale, due);
  };
  for (nn::LoraAdapter* adapter : adapters_in(model)) {
    compare(adapter->shape(), adapter->scale());
  }
  for (const auto scaling : {nn::LoraScaling::by_rank, nn::LoraScaling::by_root_of_rank}) {
    const nn::LoraShape shape{.rank = 4, .alpha = 8, .scaling = scaling};
    compare(shape, Context::current().seams.call<nn::LoraScaleSeam>(shape));
  }
  if (!check.ok()) check.cause = "lora.scale";
  return check;
}

AttentionCheck check_adapter_zero(nn::LanguageModel& model) {
  AttentionCheck check{.id = "adapter.zero",
                       .compared = "adapters of which both factors are 0",
                       .reason = "one is a beginning, two never move",
                       .proven = true};
  const NoGrad off;
  for (nn::LoraAdapter* adapter : adapters_in(model)) {
    const auto factors = adapter->parameters();
    const bool stuck = std::all_of(factors.begin(), factors.end(),
                                   [](const Parameter* p) { return is_zero(p->value()); });
    if (!stuck) continue;
    if (check.ok()) check.what = fmt::format("Both are in {}.", adapter->path());
    ++check.difference;
  }
  const Tensor a = zeros(kSmallA);
  const Tensor b = zeros(kSmallB);
  Context::current().seams.call<nn::LoraInitSeam>(a, b, uint64_t{1}, uint64_t{1});
  if (is_zero(a) && is_zero(b)) {
    if (check.ok()) check.what = "Both are in an adapter that is made anew.";
    ++check.difference;
  }
  if (!check.ok()) check.cause = "lora.both-zero";
  return check;
}

AttentionCheck check_adapter_alignment(nn::LanguageModel& model) {
  AttentionCheck check{.id = "adapter.alignment",
                       .compared = "factors of adapters that begin at no multiple of 16 bytes",
                       .reason = "a load of 16 bytes needs one",
                       .proven = true};
  for (nn::LoraAdapter* adapter : adapters_in(model)) {
    for (const Parameter* factor : adapter->parameters()) {
      if (!is_off_16_bytes(factor->value())) continue;
      if (check.ok()) check.what = fmt::format("One is {}.", factor->name());
      ++check.difference;
    }
  }
  const nn::LoraFactors fresh =
      Context::current().seams.call<nn::LoraStorageSeam>(kSmallA, kSmallB, DType::f32);
  for (const Tensor& factor : {fresh.a, fresh.b}) {
    if (!is_off_16_bytes(factor)) continue;
    if (check.ok()) check.what = "One is of an adapter that is made anew.";
    ++check.difference;
  }
  if (!check.ok()) check.cause = "lora.misaligned";
  return check;
}

// ---- merging ------------------------------------------------------------------------------------

namespace {

bool has_active_adapter(nn::LanguageModel& model) {
  bool found = false;
  model.visit([&](nn::Module& module) {
    const auto* layer = dynamic_cast<nn::Linear*>(&module);
    if (layer == nullptr) return;
    for (const auto& adapter : layer->adapters()) {
      found = found || adapter->role() == nn::AdapterRole::active;
    }
  });
  return found;
}

std::vector<Tensor> copied_parameters(nn::LanguageModel& model) {
  std::vector<Tensor> copies;
  for (Parameter* parameter : model.parameters()) copies.push_back(clone(parameter->value()));
  return copies;
}

double largest_change(nn::LanguageModel& model, const std::vector<Tensor>& before) {
  double largest = 0;
  const auto parameters = model.parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    largest = larger_or_nan(largest, largest_difference(parameters[i]->value(), before[i]));
  }
  return largest;
}

// What a layer's merge did in place of adding the product once, or `otherwise`.
std::string wrong_merge(const nn::MergeEvent& event, const std::string& otherwise) {
  const Tensor added = event.after - event.before;
  const double once = largest_difference(added, event.product);
  if (largest_difference(added, event.product * 2) < 0.1 * once) return "lora.merge-twice";
  const Shape& shape = event.product.shape();
  if (shape[0] != shape[1]) return otherwise;
  const double turned = largest_difference(added, transpose(event.product, 0, 1));
  return turned < 0.1 * once ? "lora.fan-in-out" : otherwise;
}

}  // namespace

AttentionCheck check_merge(nn::LanguageModel& model) {
  AttentionCheck check{.id = "merge",
                       .compared = "logits beside a merged adapter, and before",
                       .reason = kRoundingReason,
                       .proven = true};
  if (!has_active_adapter(model)) {
    check.skipped = "the model has no active adapter";
    return check;
  }
  CheckedModel checked(model);
  const std::vector<std::vector<int32_t>> rows = {checked.text(checked.positions(), 0)};
  const Tensor before = checked.logits(rows);
  if (!all_finite(before)) {
    check.skipped = "the logits are not finite before the merge either";
    return check;
  }
  const std::vector<Tensor> weights = copied_parameters(model);
  check.bound = checked.rounding(before);

  std::string cause = "lora.merge-bf16";
  const auto listening = Context::current().events.subscribe<nn::MergeEvent>(
      [&](const nn::MergeEvent& event) { cause = wrong_merge(event, cause); });
  nn::Merge merge;
  try {
    merge = nn::merge_adapters(model, nn::Originals::keep);
  } catch (const InvalidArgument& error) {
    check.difference = std::numeric_limits<double>::quiet_NaN();
    check.what = fmt::format("A product does not fit its weight: {}", error.what());
    check.cause = "lora.fan-in-out";
    return check;
  }
  check.difference = largest_difference(checked.logits(rows), before);
  if (!check.ok()) {
    check.what = "The merged model is another one.";
    check.cause = cause;
  }
  bool refused = false;
  try {
    nn::merge_adapters(model, nn::Originals::drop);
  } catch (const InvalidArgument&) {
    refused = true;
  }
  if (!refused) {
    check.difference = std::numeric_limits<double>::quiet_NaN();
    check.what = "A merged adapter can be merged again, and counts twice.";
    check.cause = "lora.merge-twice";
  }
  nn::unmerge_adapters(merge);
  if (const double left = largest_change(model, weights); !(left == 0)) {
    check.difference = std::numeric_limits<double>::quiet_NaN();
    check.what = fmt::format("Taken out again, it leaves weights off by {:.3g}.", left);
    if (check.cause.empty()) check.cause = "lora.merge-twice";
  }
  return check;
}

}  // namespace faultline::diagnose
