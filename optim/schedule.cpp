#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace faultline::optim {

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (decline == Decline::constant) return lr;
  if (step >= total_steps) return min_lr;
  const double done =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  const double share =
      decline == Decline::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return min_lr + (lr - min_lr) * share;
}

Decline decline_from_name(std::string_view text) {
  if (text == "constant") return Decline::constant;
  if (text == "linear") return Decline::linear;
  if (text == "cosine") return Decline::cosine;
  fail("schedule: expected constant, linear or cosine, got '{}'", text);
}

}  // namespace faultline::optim
