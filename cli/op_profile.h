#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "core/event.h"
#include "core/launch.h"

namespace faultline::cli {

// Where the time of training steps goes, by op and phase; products also by shape. A launch is
// charged with the time since the launch before it, so that the rows add up to the whole step and
// hold the framework's own time as well.
class OpProfile {
 public:
  // Listens on the current Context.
  OpProfile();

  // Run one step between the two.
  void begin_step();
  void end_step();

  // One line for each row, the largest first. `flops_per_ms` and `bytes_per_ms` are what the
  // machine reaches; the bound of a row is what it would take at those rates.
  std::string table(double flops_per_ms, double bytes_per_ms) const;

 private:
  struct Row {
    int64_t calls = 0;
    double flops = 0;  // of products only
    double bytes = 0;
    std::vector<double> milliseconds;  // step by step
  };
  void charge(Row& row);
  void see(const Launch& launch);

  EventBus::Subscription subscription_;
  std::map<std::string, Row> rows_;
  size_t steps_ = 0;
  std::chrono::steady_clock::time_point last_;
};

// What a square product reaches.
double product_flops_per_ms();

}  // namespace faultline::cli
