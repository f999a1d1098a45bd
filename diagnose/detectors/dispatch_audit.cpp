// dispatch.audit: nobody gets a slower attention than the one that was asked for, unsaid.
//
// Sees: the record of each attention call (DispatchEvent): what was requested, what ran, and why
// the rest did not; and the choice that PyTorch's rules make for a call (SdpaChoiceEvent).
// Fires: where a policy prefers one implementation and another ran (kernel.silent-fallback); where
// PyTorch would run `math` although faster backends are enabled, because each of them refuses the
// call (sdpa.fallback). Both are proof: the record is the choice itself.
// Silent: for the policies auto, require (which throws in place of falling back) and forbid; where
// the preferred one ran; where `math` is all that PyTorch was allowed.
#include <fmt/format.h>

#include "diagnose/detector.h"
#include "nn/dispatch.h"
#include "nn/sdpa_rules.h"

namespace faultline::diagnose {
namespace {

using nn::AttentionPolicy;
using nn::SdpaBackend;

class DispatchAudit : public Watcher {
 public:
  DispatchAudit(Context& context, Findings& findings)
      : Watcher(context, findings, "dispatch.audit") {
    on(&DispatchAudit::dispatched);
    on(&DispatchAudit::pytorch_chose);
  }

 private:
  void dispatched(const nn::DispatchEvent& event) {
    const nn::DispatchRecord& record = event.record;
    if (record.requested.kind != AttentionPolicy::Kind::prefer) return;
    looked();
    if (record.chosen == record.requested.which || fell_back_) return;
    fell_back_ = true;
    report("kernel.silent-fallback", 0.95, "attention",
           fmt::format("{}{}asked to {}, {} ran on q {}: {}", record.module,
                       *record.module != 0 ? ": " : "", to_string(record.requested),
                       nn::name(record.chosen), record.q_BHQD, reason(record)));
  }

  static std::string reason(const nn::DispatchRecord& record) {
    for (const nn::RejectedImplementation& rejected : record.rejected) {
      if (rejected.which == record.requested.which) return rejected.reason;
    }
    return record.reason;
  }

  void pytorch_chose(const nn::SdpaChoiceEvent& event) {
    looked();
    if (event.choice.chosen != SdpaBackend::math || pytorch_fell_back_) return;
    std::string reasons;
    for (const nn::SdpaRejection& rejected : event.choice.rejected) {
      if (!is_enabled(rejected.backend, event.device)) continue;
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", nn::name(rejected.backend),
                             fmt::join(rejected.reasons, ", "));
    }
    if (reasons.empty()) return;
    pytorch_fell_back_ = true;
    report("sdpa.fallback", 0.95, "scaled_dot_product_attention",
           fmt::format("math runs on {} q {}; {}", faultline::name(event.call.dtype),
                       event.call.query, reasons));
  }

  // cuDNN needs a library besides its switch.
  static bool is_enabled(SdpaBackend backend, const nn::SdpaDevice& device) {
    if (backend == SdpaBackend::flash) return device.flash_is_enabled;
    if (backend == SdpaBackend::efficient) return device.efficient_is_enabled;
    return backend == SdpaBackend::cudnn && device.cudnn_is_enabled && device.cudnn > 0;
  }

  bool fell_back_ = false;
  bool pytorch_fell_back_ = false;
};

}  // namespace

DETECTOR(dispatch_audit) {
  return {"dispatch.audit",
          WatchLevel::full,
          {{"kernel.silent-fallback",
            "A faster implementation was preferred, could not take the call, and a slower one ran "
            "without a word.",
            "Require the implementation that you count on, so that a call that it cannot take "
            "fails with the reason; then change the call.",
            "The dispatch report shows the preferred implementation for every call."},
           {"sdpa.fallback",
            "Every fused backend of scaled_dot_product_attention refuses the call, and PyTorch "
            "takes its math backend without a warning.",
            "Change what the reasons name (a mask tensor, the dtype, the head size), and allow "
            "only fused backends with sdpa_kernel, so that a refusal is an error.",
            "With the math backend disabled the call still runs."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<DispatchAudit>(context, findings);
          }};
}

}  // namespace faultline::diagnose
