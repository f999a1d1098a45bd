#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <string_view>

#include "core/launch.h"
#include "kernels/attributes.h"

namespace faultline::diagnose {

// What a launch of AdamW worked with, for detectors that compute the update again in double.
struct AdamwLaunch {
  std::span<const UpdateTensors> tensors;  // of each parameter; moments as the kernel left them
  AdamwAttributes attributes;
  double correction1 = 1;  // 1 - beta^t
  double correction2 = 1;
  double lr = 0;
  double factor = 1;  // on every gradient

  // Whether an update with these numbers is defined for every finite gradient.
  bool is_sound() const {
    return correction1 > 0 && correction2 > 0 && std::isfinite(lr) && std::isfinite(factor) &&
           attributes.epsilon > 0;
  }
  // What is taken from a parameter that was `before`, with these moments.
  double update(double before, double first, double second) const {
    return lr * attributes.weight_decay * before +
           lr / correction1 * first / (std::sqrt(second / correction2) + attributes.epsilon);
  }
};

// Nothing for a launch of anything else.
inline std::optional<AdamwLaunch> adamw_launch(const Launch& launch) {
  if (std::string_view(launch.label.op) != "adamw") return std::nullopt;
  const KernelArgs& args = launch.args;
  const TensorView& table = args.inputs[0];
  AdamwLaunch result;
  result.tensors = {reinterpret_cast<const UpdateTensors*>(table.data),
                    static_cast<size_t>(table.numel()) / sizeof(UpdateTensors)};
  result.attributes = args.attributes.as<AdamwAttributes>();
  result.correction1 = args.inputs[1].as<double>()[0];
  result.correction2 = args.inputs[1].as<double>()[1];
  result.lr = *args.inputs[2].as<double>();
  if (args.inputs[3].defined()) result.factor = *args.inputs[3].as<double>();
  return result;
}

}  // namespace faultline::diagnose
