#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace faultline::optim {

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (decline == Decline::constant) return lr;
  const int64_t length = total_steps - warmup_steps;
  if (length <= 0) return step >= total_steps ? min_lr : lr;
  const double done =
      static_cast<double>(std::min(step - warmup_steps, length)) / static_cast<double>(length);
  if (done >= 1) return min_lr;
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
