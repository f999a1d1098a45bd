#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/context.h"
#include "io/json.h"
#include "lab/catalogue.h"
#include "train/config.h"

namespace faultline::lab {

// An entry of faults.json.
struct PlantedFault {
  std::string fault;
  std::string variant;
  int64_t step = 1;
  int64_t rank = 0;
  std::optional<int64_t> last;  // the run was resumed without it after this step
  bool sealed = false;

  // Whether the fault was in the code that computed this step.
  bool acts_at(int64_t number) const { return step <= number && (!last || number <= *last); }
};

// {"fault", "variant", "step", "rank", "last"}, open; without "last" where there is none.
Json to_json(const PlantedFault& fault);

// What faults.json at `path` tells, seals opened; nothing when there is no such file. Throws
// InvalidArgument when it, or a seal in it, is not what was written.
std::vector<PlantedFault> read_planted(const std::string& path);

// The faults that --fault ID[:VARIANT][@step=N,rank=R] names for a training run, or one that
// mystery:SEED draws from all those that can be planted there. Nothing that is printed, thrown or
// recorded of a mystery names it; faults.json holds it under a seal. The settings that it needs
// are those of the run, in config.json as any others: they are part of the evidence.
class PlannedFaults {
 public:
  // Throws InvalidArgument naming the nearest fault, the reason why one has no training form, what
  // is wrong with its seed, @step and @rank, or two faults that replace the same code.
  explicit PlannedFaults(const std::vector<std::string>& texts, Catalogue catalogue = Catalogue());

  bool empty() const { return faults_.empty(); }
  // Sets the configuration that each needs to show; returns lines about it. Throws
  // InvalidArgument when the user, or another fault, set a key to something else.
  std::vector<std::string> apply_needs(train::ConfigBuilder& config) const;
  // For the run in directory `run`, which goes on with its configuration and its state: throws
  // InvalidArgument for a fault that cannot begin there, and where one is left out that the state
  // cannot be continued without. A mystery is never left out: that it can be would tell of it.
  void check_resume(const std::string& run, const train::ConfigBuilder& config) const;
  // For a program without that configuration: throws InvalidArgument for a fault that needs some.
  void refuse_needs() const;
  // For a text that cannot be read as the configuration asks: throws InvalidArgument when that was
  // for one of the faults.
  void refuse_text() const;
  // Throws InvalidArgument for an onset after `last_step`, or a later one than 1 where the fault is
  // in what is made once, before the first step.
  void check_onsets(int64_t last_step) const;
  // The step from which on all are planted.
  int64_t last_onset() const;
  // Plants those whose first faulty step is at most `step`. They stay as long as this object.
  void plant(Context& context, int64_t step);
  // After `step` steps: throws InvalidArgument for a fault in a seam that the program did not ask,
  // so that nothing was wrong with the run. A seam of `later` is asked after the last step only.
  void check_asked(const Context& context, int64_t step,
                   std::span<const char* const> later = {}) const;
  // What is planted, for DIR/faults.json, in a run that has done `done` steps; behind what the file
  // at `earlier` tells, if it is there.
  std::string to_json(const std::string& earlier, int64_t done) const;
  // A line about each.
  std::vector<std::string> lines() const;

 private:
  struct Planned {
    const Variant* variant = nullptr;
    std::string called;  // "ID:VARIANT", or "mystery:SEED"
    bool is_mystery = false;
    int64_t step = 1;
    std::vector<const char*> seams;  // that it replaces
    std::shared_ptr<void> guard;
  };
  Planned parse(const std::string& text) const;
  const Variant& draw(const std::string& mystery, int64_t step) const;
  PlantedFault entry_of(const Planned& fault) const;
  void check_together(const Planned& planned, const Planned& other) const;
  void check_begins(const Planned& fault, const std::string& run,
                    const train::ConfigBuilder& config) const;
  void check_left_out(const PlantedFault& entry, const std::string& run) const;
  void mark_what_any_needs(train::ConfigBuilder& config) const;

  Catalogue catalogue_;
  std::vector<Planned> faults_;
};

}  // namespace faultline::lab
