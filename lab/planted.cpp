#include "lab/planted.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "core/rng.h"
#include "io/mapped_file.h"
#include "lab/seal.h"
#include "optim/step_counter.h"

namespace faultline::lab {
namespace {

constexpr std::string_view kMystery = "mystery:";

// Seams that are asked when the run is built and not again.
constexpr const char* kAskedOnce[] = {optim::StepCounterSeam::name};

// The one of them that the fault replaces, or null. Such a fault cannot begin after the first step.
const char* asked_once(const Variant& variant, Context& context) {
  const std::shared_ptr<void> trial = variant.plant(context);
  for (const char* seam : context.seams.replaced()) {
    for (const char* once : kAskedOnce) {
      if (std::strcmp(seam, once) == 0) return once;
    }
  }
  return nullptr;
}

template <class T>
std::optional<T> whole_number(std::string_view text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end ? std::optional(value) : std::nullopt;
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

}  // namespace

PlannedFaults::PlannedFaults(const std::vector<std::string>& texts, Catalogue catalogue)
    : catalogue_(std::move(catalogue)) {
  for (const std::string& text : texts) {
    Planned planned = parse(text);
    require(!planned.is_mystery() || texts.size() == 1,
            "--fault {}: a mystery is planted alone; leave out the others", text);
    for (const Planned& other : faults_) {
      require(other.variant != planned.variant, "--fault {}: named twice", planned.called);
    }
    faults_.push_back(std::move(planned));
  }
}

PlannedFaults::Planned PlannedFaults::parse(const std::string& text) const {
  const size_t at = text.find('@');
  Planned planned;
  planned.called = text.substr(0, at);
  if (at != std::string::npos) planned.step = onset_of(text.substr(at + 1), text);
  if (planned.called.starts_with(kMystery)) {
    planned.variant = &draw(planned.called, planned.step);
    return planned;
  }
  require(planned.called != kMystery.substr(0, kMystery.size() - 1),
          "--fault {}: a mystery needs a seed, for example mystery:7", text);
  planned.variant = &catalogue_.find(planned.called);
  planned.called = planned.variant->full_name();
  planned.variant->training();  // throws where there is no such form
  return planned;
}

// Evenly among the variants that a run can have from `step` on.
const Variant& PlannedFaults::draw(const std::string& mystery, int64_t step) const {
  const auto seed = whole_number<uint64_t>(mystery.substr(kMystery.size()));
  require(seed.has_value(),
          "--fault {}: expected mystery:SEED with a whole number from 0 to 2^64 - 1, for example "
          "mystery:7",
          mystery);
  Context trial;
  const ContextGuard guard(trial);
  std::vector<const Variant*> possible;
  for (const auto& [fault, variant] : catalogue_.entries()) {
    if (!variant->has_training_form()) continue;
    if (step == 1 || asked_once(*variant, trial) == nullptr) possible.push_back(variant);
  }
  require(!possible.empty(), "--fault {}: no fault has a training form", mystery);
  return *possible[RandomSequence(*seed, stream_of("mystery")).below(possible.size(), 0)];
}

std::vector<std::string> PlannedFaults::apply_needs(train::ConfigBuilder& config) const {
  std::vector<std::string> lines;
  std::map<std::string, std::string> asked;  // key: the fault that set it
  for (const Planned& fault : faults_) {
    const std::string& name = fault.called;
    for (const auto& [key, value] : fault.variant->training().needs) {
      const std::string before = config.value(key);
      const std::optional<std::string> own = config.user_value(key);
      train::ConfigBuilder wanted = config;
      wanted.set(key, value, "fault");
      const std::string& needed = wanted.value(key);  // in the form in which values are kept
      require(!own || *own == needed,
              "--fault {}: it shows only with {}={}, and you set {}={}; leave that out", name, key,
              needed, key, own.value_or(""));
      const auto other = asked.find(key);
      require(other == asked.end() || before == needed,
              "--fault {}: it needs {}={}, but {} needs {}={}; plant one at a time", name, key,
              needed, other == asked.end() ? "" : other->second, key, before);
      asked[key] = name;
      if (before == needed) continue;
      config = std::move(wanted);
      if (fault.is_mystery()) continue;
      lines.push_back(fmt::format("{} needs {}={} (it was {})", name, key, value, before));
    }
    if (!fault.is_mystery()) continue;
    mark_what_any_needs(config);
    lines.push_back(fmt::format(
        "{} sets what it needs; config.json shows it among all that a fault may set", name));
  }
  return lines;
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

void PlannedFaults::check_onsets(Context& context, int64_t last_step) const {
  for (const Planned& fault : faults_) {
    require(fault.step <= last_step || fault.step == 1,
            "--fault {}: it begins at step {}, after the last step {}", fault.called, fault.step,
            last_step);
    if (fault.step == 1) continue;
    const char* seam = asked_once(*fault.variant, context);
    require(seam == nullptr,
            "--fault {}: it is in the {}, which is made before the first step; leave out "
            "@step={}",
            fault.called, seam == nullptr ? "" : seam, fault.step);
  }
}

void PlannedFaults::plant(Context& context, int64_t step) {
  for (Planned& fault : faults_) {
    if (fault.guard == nullptr && fault.step <= step) fault.guard = fault.variant->plant(context);
  }
}

std::string PlannedFaults::to_json(const std::string& earlier) const {
  Json list = Json::array();
  if (std::filesystem::exists(earlier)) {
    list = Json::parse(map_file(earlier).text(), earlier);
  }
  for (const Planned& fault : faults_) {
    const Json open = Json::object()
                          .set("fault", fault.variant->fault_id())
                          .set("variant", fault.variant->name())
                          .set("step", fault.step)
                          .set("rank", 0);
    const Json entry = fault.is_mystery() ? seal(open) : open;
    const auto& known = list.items();
    if (std::find(known.begin(), known.end(), entry) == known.end()) list.push(entry);
  }
  return list.to_indented_text();
}

std::vector<std::string> PlannedFaults::lines() const {
  std::vector<std::string> lines;
  for (const Planned& fault : faults_) {
    if (!fault.is_mystery()) {
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
      const Json open = is_sealed(entry) ? unseal(entry) : entry;
      planted.push_back({open.at("fault").text(), open.at("variant").text(),
                         open.at("step").integer(), open.at("rank").integer()});
    }
  } catch (const InvalidArgument& error) {
    fail("'{}' does not tell what was planted: {}", path, error.what());
  }
  return planted;
}

}  // namespace faultline::lab
