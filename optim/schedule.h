#pragma once

#include <cstdint>
#include <string_view>

namespace faultline::optim {

enum class Decline : uint8_t { constant, linear, cosine };

// A learning rate as a pure function of the step: linear warm-up from 0 to `lr`, then a decline to
// `min_lr` at `total_steps`, where it stays (also when the warm-up is as long as the run).
// Decline::constant stays at `lr`.
struct Schedule {
  Decline decline = Decline::cosine;
  double lr = 1e-3;
  double min_lr = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // The rate of step 1, 2, ...; step `warmup_steps` is the first with the full `lr`. `step` is not
  // negative.
  double at(int64_t step) const;
};

// "constant", "linear" or "cosine"; throws InvalidArgument otherwise.
Decline decline_from_name(std::string_view text);

}  // namespace faultline::optim
