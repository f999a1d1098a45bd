#include "lab/planted.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/rng.h"
#include "core/whole_number.h"
#include "io/mapped_file.h"
#include "lab/seal.h"
#include "optim/step_counter.h"

namespace faultline::lab {
namespace {

constexpr std::string_view kMystery = "mystery:";
// The key that says how the text is cut. Only a text with references can be cut by verse.
constexpr const char* kDocuments = "documents";

// Seams that are asked when the run is built and not again. Its state holds what came of them.
constexpr const char* kAskedOnce[] = {optim::StepCounterSeam::name};

std::vector<const char*> seams_of(const Variant& variant) {
  Context trial;
  const ContextGuard guard(trial);
  const std::shared_ptr<void> planted = variant.plant(trial);
  return trial.seams.replaced();
}

// The first seam that both name, or null.
const char* in_both(std::span<const char* const> a, std::span<const char* const> b) {
  for (const char* seam : a) {
    for (const char* other : b) {
      if (std::strcmp(seam, other) == 0) return seam;
    }
  }
  return nullptr;
}

int64_t number_of(const std::string& text, const std::string& fault) {
  const auto value = whole_number<int64_t>(text);
  require(value && *value >= 0, "--fault {}: '{}' is not a number of a step or rank", fault, text);
  return *value;
}

// The first faulty step of "step=N,rank=R".
int64_t onset_of(const std::string& places, const std::string& text) {
  require(!places.empty(), "--fault {}: expected step=N or rank=R behind the @", text);
  int64_t step = 1;
  std::string rest = places + ",";
  for (size_t comma; (comma = rest.find(',')) != std::string::npos; rest.erase(0, comma + 1)) {
    const std::string part = rest.substr(0, comma);
    if (part.starts_with("step=")) {
      step = number_of(part.substr(5), text);
      require(step >= 1, "--fault {}: steps count from 1", text);
    } else if (part.starts_with("rank=")) {
      require(number_of(part.substr(5), text) == 0,
              "--fault {}: this run has one rank, number 0; more come with a later version", text);
    } else {
      fail("--fault {}: expected step=N or rank=R behind the @, got '{}'", text, part);
    }
  }
  return step;
}

// Which setting stands in its way would tell which fault it is. There are faults that need none, so
// another seed can do.
[[noreturn]] void refuse_mystery(const std::string& mystery) {
  fail(
      "--fault {}: it cannot be had with the text and the values that you set; leave them out, or "
      "take another seed",
      mystery);
}

// For a key that the user set otherwise.
[[noreturn]] void refuse_value(bool is_mystery, const std::string& fault, const std::string& key,
                               const std::string& needed, const std::string& own) {
  if (is_mystery) refuse_mystery(fault);
  const bool of_text = key == kDocuments;
  fail("--fault {}: it shows only with {}={}{}, and you set {}={}; leave that out{}", fault, key,
       needed, of_text ? " of the default corpus, or a text like it" : "", key, own,
       of_text ? ", and --data" : "");
}

bool is_possible(const train::ConfigBuilder& config) {
  try {
    config.build();
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// Whether both are one fault. A mystery is not the fault of that name: who tried the names would
// be told which it is.
bool is_same(const PlantedFault& a, const PlantedFault& b) {
  return a.fault == b.fault && a.variant == b.variant && a.sealed == b.sealed;
}

// Whether a planned fault is the one of an earlier entry, in effect from the same step on.
auto goes_on_with(const PlantedFault& entry, int64_t done) {
  return [&entry, done](const PlantedFault& fault) {
    return is_same(fault, entry) &&
           std::max(fault.step, done + 1) == std::max(entry.step, done + 1);
  };
}

}  // namespace

Json to_json(const PlantedFault& fault) {
  Json json = Json::object()
                  .set("fault", fault.fault)
                  .set("variant", fault.variant)
                  .set("step", fault.step)
                  .set("rank", fault.rank);
  if (fault.last) json.set("last", *fault.last);
  return json;
}

PlannedFaults::PlannedFaults(const std::vector<std::string>& texts, Catalogue catalogue)
    : catalogue_(std::move(catalogue)) {
  for (const std::string& text : texts) {
    Planned planned = parse(text);
    require(!planned.is_mystery || texts.size() == 1,
            "--fault {}: a mystery is planted alone; leave out the others", text);
    for (const Planned& other : faults_) check_together(planned, other);
    faults_.push_back(std::move(planned));
  }
}

PlannedFaults::Planned PlannedFaults::parse(const std::string& text) const {
  const size_t at = text.find('@');
  Planned planned;
  planned.called = text.substr(0, at);
  if (at != std::string::npos) planned.step = onset_of(text.substr(at + 1), text);
  require(planned.called != kMystery.substr(0, kMystery.size() - 1),
          "--fault {}: a mystery needs a seed, for example mystery:7", text);
  planned.is_mystery = planned.called.starts_with(kMystery);
  if (planned.is_mystery) {
    planned.variant = &draw(planned.called, planned.step);
  } else {
    planned.variant = &catalogue_.find(planned.called);
    planned.called = planned.variant->full_name();
    planned.variant->training();  // throws where there is no such form
  }
  planned.seams = seams_of(*planned.variant);
  return planned;
}

// Of two replacements of one seam only the later would act.
void PlannedFaults::check_together(const Planned& planned, const Planned& other) const {
  require(other.variant != planned.variant, "--fault {}: named twice", planned.called);
  const char* seam = in_both(planned.seams, other.seams);
  require(seam == nullptr, "--fault {}: it replaces the {}, and so does {}; plant one at a time",
          planned.called, seam == nullptr ? "" : seam, other.called);
}

// Evenly among the variants that a run can have from `step` on.
const Variant& PlannedFaults::draw(const std::string& mystery, int64_t step) const {
  const auto seed = whole_number<uint64_t>(mystery.substr(kMystery.size()));
  require(seed.has_value(),
          "--fault {}: expected mystery:SEED with a whole number from 0 to 2^64 - 1, for example "
          "mystery:7",
          mystery);
  std::vector<const Variant*> possible;
  for (const auto& [fault, variant] : catalogue_.entries()) {
    if (!variant->has_training_form()) continue;
    if (step == 1 || in_both(seams_of(*variant), kAskedOnce) == nullptr) {
      possible.push_back(variant);
    }
  }
  require(!possible.empty(), "--fault {}: no fault has a training form", mystery);
  return *possible[RandomSequence(*seed, stream_of("mystery")).below(possible.size(), 0)];
}

std::vector<std::string> PlannedFaults::apply_needs(train::ConfigBuilder& config) const {
  std::vector<std::string> lines;
  std::map<std::string, std::string> asked;  // key: the fault that set it
  for (const Planned& fault : faults_) {
    const std::string& name = fault.called;
    const train::ConfigBuilder without = config;
    for (const auto& [key, value] : fault.variant->training().needs) {
      const std::string before = config.value(key);
      const std::optional<std::string> own = config.user_value(key);
      train::ConfigBuilder wanted = config;
      wanted.set(key, value, "fault");
      const std::string& needed = wanted.value(key);  // in the form in which values are kept
      if (own && *own != needed) refuse_value(fault.is_mystery, name, key, needed, *own);
      const auto other = asked.find(key);
      require(other == asked.end() || before == needed,
              "--fault {}: it needs {}={}, but {} needs {}={}; plant one at a time", name, key,
              needed, other == asked.end() ? "" : other->second, key, before);
      asked[key] = name;
      if (before == needed) continue;
      config = std::move(wanted);
      if (fault.is_mystery) continue;
      const std::string was = before.empty() ? "" : fmt::format(" (it was {})", before);
      lines.push_back(fmt::format("{} needs {}={}{}", name, key, needed, was));
    }
    if (!fault.is_mystery) continue;
    if (is_possible(without) && !is_possible(config)) refuse_mystery(name);
    mark_what_any_needs(config);
    lines.push_back(fmt::format(
        "{} sets what it needs; the settings are part of the evidence, config.json shows them",
        name));
  }
  return lines;
}

void PlannedFaults::check_resume(const std::string& run, const train::ConfigBuilder& config) const {
  std::vector<PlantedFault> earlier = read_planted(run + "/faults.json");
  std::erase_if(earlier, [](const PlantedFault& entry) { return entry.last.has_value(); });
  for (const PlantedFault& entry : earlier) {
    const bool goes_on = std::any_of(faults_.begin(), faults_.end(), [&](const Planned& fault) {
      return is_same(entry_of(fault), entry);
    });
    if (!goes_on) check_left_out(entry, run);
  }
  for (const Planned& fault : faults_) {
    const bool was_there =
        std::any_of(earlier.begin(), earlier.end(),
                    [&](const PlantedFault& entry) { return is_same(entry_of(fault), entry); });
    if (!was_there) check_begins(fault, run, config);
  }
}

void PlannedFaults::check_left_out(const PlantedFault& entry, const std::string& run) const {
  require(
      !entry.sealed,
      "train: --resume {}: a mystery is planted in it, and it goes on only with that; repeat its "
      "--fault mystery:SEED",
      run);
  for (const auto& [_, variant] : catalogue_.entries()) {
    if (variant->fault_id() != entry.fault || variant->name() != entry.variant) continue;
    const char* seam = in_both(seams_of(*variant), kAskedOnce);
    require(
        seam == nullptr,
        "train: --resume {}: its {} is that of {}, and its state can be continued only with it; "
        "repeat --fault {}",
        run, seam == nullptr ? "" : seam, variant->full_name(), variant->full_name());
  }
}

void PlannedFaults::check_begins(const Planned& fault, const std::string& run,
                                 const train::ConfigBuilder& config) const {
  // One sentence for a mystery, whatever stands in its way.
  const auto refuse = [&](const std::string& why) {
    fail("--fault {}: {}; {}begin a new run with it", fault.called,
         fault.is_mystery ? "it cannot begin in " + run : why,
         fault.is_mystery ? "take another seed, or " : "");
  };
  for (const auto& [key, value] : fault.variant->training().needs) {
    train::ConfigBuilder wanted = config;
    wanted.set(key, value, "fault");
    if (config.value(key) == wanted.value(key)) continue;
    refuse(fmt::format("it needs {}={}, which {} did not begin with", key, value, run));
  }
  if (const char* seam = in_both(fault.seams, kAskedOnce)) {
    refuse(fmt::format("it is in the {}, which is made before the first step", seam));
  }
}

void PlannedFaults::refuse_needs() const {
  for (const Planned& fault : faults_) {
    for (const auto& [key, value] : fault.variant->training().needs) {
      fail(
          "--fault {}: it needs {}={}; this program has no such setting, `faultline train tiny` "
          "has",
          fault.called, key, value);
    }
  }
}

void PlannedFaults::refuse_text() const {
  for (const Planned& fault : faults_) {
    const auto& needs = fault.variant->training().needs;
    const auto documents = needs.find(kDocuments);
    if (documents == needs.end()) continue;
    if (fault.is_mystery) refuse_mystery(fault.called);
    fail(
        "--fault {}: it needs the default corpus, or a text like it, cut by {}; train without "
        "--data",
        fault.called, documents->second);
  }
}

// Else the marked keys would tell which fault it is. Values stay.
void PlannedFaults::mark_what_any_needs(train::ConfigBuilder& config) const {
  for (const auto& [fault, variant] : catalogue_.entries()) {
    if (!variant->has_training_form()) continue;
    for (const auto& [key, _] : variant->training().needs) {
      if (!config.user_value(key)) config.set(key, std::string(config.value(key)), "fault");
    }
  }
}

void PlannedFaults::check_onsets(int64_t last_step) const {
  for (const Planned& fault : faults_) {
    require(fault.step <= last_step || fault.step == 1,
            "--fault {}: it begins at step {}, after the last step {}", fault.called, fault.step,
            last_step);
    if (fault.step == 1) continue;
    const char* seam = in_both(fault.seams, kAskedOnce);
    require(seam == nullptr,
            "--fault {}: it is in the {}, which is made before the first step; leave out "
            "@step={}",
            fault.called, seam == nullptr ? "" : seam, fault.step);
  }
}

int64_t PlannedFaults::last_onset() const {
  int64_t last = 1;
  for (const Planned& fault : faults_) last = std::max(last, fault.step);
  return last;
}

void PlannedFaults::plant(Context& context, int64_t step) {
  for (Planned& fault : faults_) {
    if (fault.guard == nullptr && fault.step <= step) fault.guard = fault.variant->plant(context);
  }
}

void PlannedFaults::check_asked(const Context& context, int64_t step,
                                std::span<const char* const> later) const {
  const std::vector<const char*> unasked = context.seams.unasked();
  for (const Planned& fault : faults_) {
    const char* seam = fault.step <= step ? in_both(fault.seams, unasked) : nullptr;
    require(seam == nullptr || in_both({&seam, 1}, later) != nullptr,
            "--fault {}: this program never asks the seam \"{}\"; `faultline train tiny --fault "
            "{}` does",
            fault.called, seam == nullptr ? "" : seam, fault.called);
  }
}

PlantedFault PlannedFaults::entry_of(const Planned& fault) const {
  return {.fault = fault.variant->fault_id(),
          .variant = fault.variant->name(),
          .step = fault.step,
          .sealed = fault.is_mystery};
}

std::string PlannedFaults::to_json(const std::string& earlier, int64_t done) const {
  std::vector<PlantedFault> entries = read_planted(earlier);
  std::vector<PlantedFault> planted;
  for (const Planned& fault : faults_) planted.push_back(entry_of(fault));
  // A resume that plants a fault again goes on with its entry; one that does not ends it.
  for (PlantedFault& entry : entries) {
    if (!entry.last && !std::erase_if(planted, goes_on_with(entry, done))) entry.last = done;
  }
  for (PlantedFault& fault : planted) {
    fault.step = std::max(fault.step, done + 1);
    entries.push_back(fault);
  }
  Json list = Json::array();
  for (const PlantedFault& entry : entries)
    list.push(entry.sealed ? seal(lab::to_json(entry)) : lab::to_json(entry));
  return list.to_indented_text();
}

std::vector<std::string> PlannedFaults::lines() const {
  std::vector<std::string> lines;
  for (const Planned& fault : faults_) {
    if (!fault.is_mystery) {
      lines.push_back("planted: " + fault.called);
      continue;
    }
    int64_t longest = 0;  // over all of them, so that it says nothing of this one
    for (const auto& [_, variant] : catalogue_.entries()) {
      if (variant->has_training_form()) longest = std::max(longest, variant->training().steps);
    }
    lines.push_back(
        fmt::format("planted: {}, whatever it is; each fault shows within {} steps "
                    "under --watch full, some much earlier",
                    fault.called, longest));
  }
  return lines;
}

std::vector<PlantedFault> read_planted(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  std::vector<PlantedFault> planted;
  try {
    const Json list = Json::parse(map_file(path).text(), path);
    for (const Json& entry : list.items()) {
      const bool sealed = is_sealed(entry);
      const Json open = sealed ? unseal(entry) : entry;
      const Json* last = open.find("last");
      planted.push_back({.fault = open.at("fault").text(),
                         .variant = open.at("variant").text(),
                         .step = open.at("step").integer(),
                         .rank = open.at("rank").integer(),
                         .last = last ? std::optional(last->integer()) : std::nullopt,
                         .sealed = sealed});
    }
  } catch (const InvalidArgument& error) {
    fail("'{}' does not tell what was planted: {}", path, error.what());
  }
  return planted;
}

}  // namespace faultline::lab
