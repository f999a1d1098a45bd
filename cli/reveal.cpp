#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "io/json_lines.h"
#include "io/mapped_file.h"
#include "lab/planted.h"
#include "train/run.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Tells what was planted in a run, a mystery too, and whether its verdict was right.\n"
    "Example: faultline reveal run";

// What the run's own detectors made of it.
struct Verdict {
  std::string text;   // "healthy", "fault" or "undecided"
  std::string cause;  // ranked first; "" when none is named
};

std::optional<Verdict> read_verdict(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json json = Json::parse(map_file(path).text(), path);
  const auto& causes = json.at("causes").items();
  return Verdict{json.at("verdict").text(), causes.empty() ? "" : causes[0].at("id").text()};
}

int64_t steps_done(const std::string& metrics) {
  int64_t steps = 0;
  if (!std::filesystem::exists(metrics)) return steps;
  for (const Json& line : read_json_lines(metrics)) {
    if (line.find("loss") != nullptr) steps = std::max(steps, line.at("step").integer());
  }
  return steps;
}

// The detectors saw the last part of a run. Right is to name one of the faults that were in it, or
// to be silent where none was.
bool is_right(const Verdict& verdict, const std::vector<lab::PlantedFault>& planted,
              int64_t steps) {
  bool any = false;
  for (const lab::PlantedFault& fault : planted) {
    const bool acts = fault.acts_at(steps);
    any = any || acts;
    if (acts && verdict.text == "fault" && verdict.cause == fault.fault) return true;
  }
  return !any && verdict.text == "healthy";
}

std::string about(const lab::PlantedFault& planted, int64_t steps) {
  const std::string name = planted.fault + (planted.variant.empty() ? "" : ":" + planted.variant);
  const lab::Catalogue catalogue;
  return fmt::format(
      "{}   {}\n  from step {} {}{}\n  faultline explain {}\n", name, catalogue.find(name).title(),
      planted.step, planted.last ? fmt::format("to {}", *planted.last) : "on",
      planted.step > steps ? fmt::format("; the run is at step {}", steps) : "", name);
}

std::string about(const std::optional<Verdict>& verdict, bool right) {
  if (!verdict) return "no verdict: the run was not watched, or has not ended\n";
  return fmt::format("verdict: {}{}, which is {}\n", verdict->text,
                     verdict->cause.empty() ? "" : ", " + verdict->cause,
                     right ? "right" : "wrong");
}

void reveal(const std::string& run, const std::string& json) {
  train::read_record(run);  // throws when this is no run
  const std::vector<lab::PlantedFault> planted = lab::read_planted(run + "/faults.json");
  const std::optional<Verdict> verdict = read_verdict(run + "/verdict.json");
  const int64_t steps = steps_done(run + "/metrics.jsonl");
  const bool right = verdict && is_right(*verdict, planted, steps);
  if (json != "-") {
    if (planted.empty()) std::cout << "nothing was planted\n";
    for (const lab::PlantedFault& fault : planted) std::cout << about(fault, steps);
    std::cout << about(verdict, right);
  }
  Json list = Json::array();
  for (const lab::PlantedFault& fault : planted) list.push(lab::to_json(fault));
  write_json(json, Json::object()
                       .set("planted", list)
                       .set("verdict", verdict ? Json(verdict->text) : Json())
                       .set("cause", verdict ? Json(verdict->cause) : Json())
                       .set("right", verdict ? Json(right) : Json()));
}

}  // namespace

void add_reveal(CLI::App& app, int& exit_code) {
  struct Request {
    std::string run;
    std::string json;
  };
  CLI::App* command = app.add_subcommand("reveal", kHelp);
  auto request = std::make_shared<Request>();
  command->add_option("DIR", request->run, "Directory of a run")->required();
  command->add_option("--json", request->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([request, &exit_code] {
    reveal(request->run, request->json);
    exit_code = 0;
  });
}

}  // namespace faultline::cli
