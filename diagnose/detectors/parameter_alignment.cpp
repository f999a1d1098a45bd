// parameter.alignment: the memory of a parameter must begin where a load of 16 bytes may.
//
// Sees: StepBeginEvent, for where each parameter lies; and every launch (LaunchEvent), for which of
// them a kernel reads.
// Fires: when a kernel reads a parameter of an adapter that begins at no multiple of 16 bytes (for
// any other parameter it names no cause). That is what the widest load of a GPU needs, and of the
// aligned ones of a CPU; an allocator gives at least 64, so whoever is not there has been placed by
// hand. Narrower loads would do, and a kernel that asks the address first is right to use them:
// therefore not 1.
// Silent: results and inputs of ops, which are views at any offset; and rows that begin off 16
// bytes because a row's length does, as with a rank of 3. Kernels handle rows by their stride.
// Serves one case, because the allocator places everything else.
#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "core/launch.h"
#include "diagnose/detector.h"
#include "train/events.h"

namespace faultline::diagnose {
namespace {

constexpr uintptr_t kWidest = 16;  // bytes of one load

uintptr_t past_boundary(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % kWidest;
}

class ParameterAlignment : public Watcher {
 public:
  ParameterAlignment(Context& context, Findings& findings)
      : Watcher(context, findings, "parameter.alignment") {
    on(&ParameterAlignment::step_begins);
    on(&ParameterAlignment::launched);
  }

 private:
  void step_begins(const train::StepBeginEvent& event) {
    if (fired_) return;
    looked();
    off_.clear();
    for (const Parameter* parameter : event.parameters) {
      const bool is_off = past_boundary(parameter->value().view().data) != 0;
      if (is_off) off_.push_back(parameter);
    }
  }

  void launched(const LaunchEvent& event) {
    if (off_.empty() || fired_) return;
    const KernelArgs& args = event.launch.args;
    for (const Parameter* parameter : off_) {
      for (int i = 0; i < args.input_count; ++i) {
        if (args.inputs[i].data == parameter->value().view().data) return fire(*parameter, event);
      }
    }
  }

  void fire(const Parameter& parameter, const LaunchEvent& event) {
    fired_ = true;
    const bool is_adapter = parameter.name().find("lora_") != std::string::npos;
    report(is_adapter ? "lora.misaligned" : "", 0.9, event.launch.label.op,
           fmt::format("{} reads {}, which begins {} bytes past a multiple of 16; {} parameters do",
                       event.launch.label.op, parameter.name(),
                       past_boundary(parameter.value().view().data), off_.size()));
  }

  std::vector<const Parameter*> off_;  // that begin at no multiple of 16
  bool fired_ = false;
};

}  // namespace

DETECTOR(parameter_alignment) {
  return {"parameter.alignment",
          WatchLevel::full,
          {{"lora.misaligned",
            "The factors of an adapter lie directly behind each other or behind a header: one "
            "begins at no multiple of 16 bytes, and a kernel that loads 16 bytes at once faults.",
            "Give each factor memory of its own, pad to 16 bytes, or let the kernel choose the "
            "width of its loads from address and stride.",
            "Every factor begins at a multiple of 16 bytes."}},
          [](Context& context, Findings& findings) {
            return std::make_unique<ParameterAlignment>(context, findings);
          }};
}

}  // namespace faultline::diagnose
