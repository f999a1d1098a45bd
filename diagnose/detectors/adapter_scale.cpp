// adapter.scale: an adapter must act with alpha / r, or with alpha / sqrt(r) where its
// configuration asks for that.
//
// Sees: ForwardEvent of adapters, with the factor that they use; what each was made with (rank,
// alpha, the rule); and RunEvent, whose configuration says which rule the run asks for.
// Fires: when the factor differs by more than 1e-6 of itself from what rank, alpha and rule give.
// All are doubles and one division apart; the nearest wrong rule differs by the root of the rank,
// at least 1.4.
// Silent: rank 1, where both rules agree; and adapters that a program scales on purpose after they
// were made, which do so outside of the factor.
// Serves one case, because the factor is the only number of an adapter that is not learned.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "diagnose/detector.h"
#include "nn/lora.h"
#include "train/events.h"
#include "train/lora.h"

namespace faultline::diagnose {
namespace {

constexpr double kRounding = 1e-6;

class AdapterScale : public Watcher {
 public:
  AdapterScale(Context& context, Findings& findings) : Watcher(context, findings, "adapter.scale") {
    on(&AdapterScale::begins);
    on(&AdapterScale::ran);
  }

 private:
  void begins(const train::RunEvent& event) {
    if (event.config.lora.empty()) return;
    asked_ = train::lora_from_text(event.config.lora).scaling;
  }

  void ran(const nn::ForwardEvent& event) {
    const auto* adapter = dynamic_cast<const nn::LoraAdapter*>(&event.module);
    if (adapter == nullptr || fired_) return;
    looked();
    const nn::LoraShape& shape = adapter->shape();
    const bool by_rank = asked_.value_or(shape.scaling) == nn::LoraScaling::by_rank;
    const auto rank = static_cast<double>(shape.rank);
    const double due = shape.alpha / (by_rank ? rank : std::sqrt(rank));
    if (std::abs(adapter->scale() - due) <= kRounding * std::abs(due)) return;
    fired_ = true;
    report("lora.scale", 0.98, "linear",
           fmt::format("{}: r = {}, alpha = {:g}, so {} = {:g} is due; {:g} acts",
                       event.module.path(), shape.rank, shape.alpha,
                       by_rank ? "alpha / r" : "alpha / sqrt(r)", due, adapter->scale()));
  }

  std::optional<nn::LoraScaling> asked_;  // by the configuration of the run
  bool fired_ = false;
};

}  // namespace

DETECTOR(adapter_scale) {
  return {"adapter.scale",
          WatchLevel::full,
          {{"lora.scale",
            "An adapter acts with another factor than it was trained with: its rule (alpha / r or "
            "alpha / sqrt(r)) was not read, or alpha was not divided at all.",
            "Read use_rslora, and the patterns of rank and alpha, with the adapter; compare the "
            "size of its output with the trainer's.",
            "The factor equals alpha / r, or alpha / sqrt(r) for a rank-stabilised adapter."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<AdapterScale>(context, findings);
          }};
}

}  // namespace faultline::diagnose
