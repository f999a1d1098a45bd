#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "lab/catalogue.h"
#include "train/config.h"

namespace faultline::lab {

// The faults that --fault ID[:VARIANT][@step=N,rank=R] names for a training run, or one that
// mystery:SEED draws from all those that can be planted there. Nothing that is printed, thrown or
// recorded of a mystery names it; faults.json holds it under a seal.
class PlannedFaults {
 public:
  // Throws InvalidArgument naming the nearest fault, the reason why one has no training form, or
  // what is wrong with its seed, @step and @rank.
  explicit PlannedFaults(const std::vector<std::string>& texts, Catalogue catalogue = Catalogue());

  bool empty() const { return faults_.empty(); }
  // Sets the configuration that each needs to show; returns lines about it. Throws
  // InvalidArgument when the user, or another fault, set a key to something else.
  std::vector<std::string> apply_needs(train::ConfigBuilder& config) const;
  // Throws InvalidArgument for an onset after `last_step`, or a later one than 1 where the fault is
  // in what is made once, before the first step.
  void check_onsets(Context& context, int64_t last_step) const;
  // Plants those whose first faulty step is at most `step`. They stay as long as this object.
  void plant(Context& context, int64_t step);
  // What is planted, for DIR/faults.json; behind what the file at `earlier` tells, if it is there.
  std::string to_json(const std::string& earlier) const;
  // A line about each.
  std::vector<std::string> lines() const;

 private:
  struct Planned {
    const Variant* variant = nullptr;
    std::string called;  // "ID:VARIANT", or "mystery:SEED"
    int64_t step = 1;
    std::shared_ptr<void> guard;
    bool is_mystery() const { return called != variant->full_name(); }
  };
  Planned parse(const std::string& text) const;
  const Variant& draw(const std::string& mystery, int64_t step) const;
  void mark_what_any_needs(train::ConfigBuilder& config) const;

  Catalogue catalogue_;
  std::vector<Planned> faults_;
};

// An entry of faults.json.
struct PlantedFault {
  std::string fault;
  std::string variant;
  int64_t step = 1;
  int64_t rank = 0;
};

// What faults.json at `path` tells, seals opened; nothing when there is no such file. Throws
// InvalidArgument when it, or a seal in it, is not what was written.
std::vector<PlantedFault> read_planted(const std::string& path);

}  // namespace faultline::lab
