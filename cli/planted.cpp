#include "cli/planted.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "io/json.h"
#include "io/mapped_file.h"
#include "optim/step_counter.h"

namespace faultline::cli {
namespace {

// Seams that are asked when the run is built and not again.
constexpr const char* kAskedOnce[] = {optim::StepCounterSeam::name};

int64_t number_of(const std::string& text, const std::string& fault) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  require(result.ec == std::errc{} && result.ptr == end && value >= 0,
          "--fault {}: '{}' is not a number of a step or rank", fault, text);
  return value;
}

}  // namespace

PlannedFaults::PlannedFaults(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    Planned planned = parse(catalogue_, text);
    for (const Planned& other : faults_) {
      require(other.variant != planned.variant, "--fault {}: named twice",
              planned.variant->full_name());
    }
    faults_.push_back(std::move(planned));
  }
}

PlannedFaults::Planned PlannedFaults::parse(const lab::Catalogue& catalogue,
                                            const std::string& text) {
  const size_t at = text.find('@');
  Planned planned{&catalogue.find(text.substr(0, at)), 1, nullptr};
  planned.variant->training();  // throws where there is no such form
  std::string rest = at == std::string::npos ? "" : text.substr(at + 1) + ",";
  require(at == std::string::npos || rest != ",",
          "--fault {}: expected step=N or rank=R behind the @", text);
  for (size_t comma; (comma = rest.find(',')) != std::string::npos; rest.erase(0, comma + 1)) {
    const std::string part = rest.substr(0, comma);
    if (part.starts_with("step=")) {
      planned.step = number_of(part.substr(5), text);
      require(planned.step >= 1, "--fault {}: steps count from 1", text);
    } else if (part.starts_with("rank=")) {
      require(number_of(part.substr(5), text) == 0,
              "--fault {}: this run has one rank, number 0; more come with a later version", text);
    } else {
      fail("--fault {}: expected step=N or rank=R behind the @, got '{}'", text, part);
    }
  }
  return planned;
}

std::vector<std::string> PlannedFaults::apply_needs(train::ConfigBuilder& config) const {
  std::vector<std::string> lines;
  std::map<std::string, std::string> asked;  // key: the fault that set it
  for (const Planned& fault : faults_) {
    const std::string name = fault.variant->full_name();
    for (const auto& [key, value] : fault.variant->training().needs) {
      const std::string before = config.value(key);
      const std::optional<std::string> own = config.user_value(key);
      train::ConfigBuilder wanted = config;
      wanted.set(key, value, "fault " + name);
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
      lines.push_back(fmt::format("{} needs {}={} (it was {})", name, key, value, before));
    }
  }
  return lines;
}

void PlannedFaults::check_onsets(Context& context, int64_t last_step) const {
  for (const Planned& fault : faults_) {
    const std::string name = fault.variant->full_name();
    require(fault.step <= last_step || fault.step == 1,
            "--fault {}: it begins at step {}, after the last step {}", name, fault.step,
            last_step);
    if (fault.step == 1) continue;
    const std::shared_ptr<void> trial = fault.variant->plant(context);
    for (const char* seam : context.seams.replaced()) {
      for (const char* once : kAskedOnce) {
        require(std::strcmp(seam, once) != 0,
                "--fault {}: it is in the {}, which is made before the first step; leave out "
                "@step={}",
                name, seam, fault.step);
      }
    }
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
    const Json entry = Json::object()
                           .set("fault", fault.variant->fault_id())
                           .set("variant", fault.variant->name())
                           .set("step", fault.step)
                           .set("rank", 0);
    const auto& known = list.items();
    if (std::find(known.begin(), known.end(), entry) == known.end()) list.push(entry);
  }
  return list.to_indented_text();
}

std::vector<std::string> PlannedFaults::names() const {
  std::vector<std::string> names;
  for (const Planned& fault : faults_) names.push_back(fault.variant->full_name());
  return names;
}

}  // namespace faultline::cli
