#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "lab/catalogue.h"
#include "train/config.h"

namespace faultline::cli {

// The faults that --fault ID[:VARIANT][@step=N,rank=R] names for a training run.
class PlannedFaults {
 public:
  // Throws InvalidArgument naming the nearest fault, the reason why one has no training form, or
  // what is wrong with its @step and @rank.
  explicit PlannedFaults(const std::vector<std::string>& texts);

  bool empty() const { return faults_.empty(); }
  // Sets the configuration that each needs to show; returns a line about each setting. Throws
  // InvalidArgument when the user, or another fault, set a key to something else.
  std::vector<std::string> apply_needs(train::ConfigBuilder& config) const;
  // Throws InvalidArgument for an onset after `last_step`, or a later one than 1 where the fault is
  // in what is made once, before the first step.
  void check_onsets(Context& context, int64_t last_step) const;
  // Plants those whose first faulty step is at most `step`. They stay as long as this object.
  void plant(Context& context, int64_t step);
  // What is planted, for DIR/faults.json; behind what the file at `earlier` tells, if it is there.
  std::string to_json(const std::string& earlier) const;
  std::vector<std::string> names() const;

 private:
  struct Planned {
    const lab::Variant* variant;
    int64_t step = 1;
    std::shared_ptr<void> guard;
  };
  static Planned parse(const lab::Catalogue& catalogue, const std::string& text);

  lab::Catalogue catalogue_;
  std::vector<Planned> faults_;
};

}  // namespace faultline::cli
