#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/whole_number.h"
#include "core/error.h"
#include "io/atomic_file.h"
#include "lab/console.h"
#include "lab/report.h"
#include "lab/runner.h"

namespace faultline::cli {
namespace {

struct LabRequest {
  std::vector<std::string> patterns;
  std::string domain;
  uint64_t seed = 1;
  double deadline = 20;
  int parallel = 0;
  bool list = false;
  std::string json;
  std::string report;
  std::string run_case;
};

// With --json - standard output holds the JSON and nothing else.
void say(const LabRequest& request, const std::string& text) {
  if (request.json == "-") return;
  std::cout << text << std::flush;
}

void list_cases(const LabRequest& request, const std::vector<lab::Catalogue::Entry>& entries) {
  if (request.json.empty()) say(request, lab::list_text(entries));
  write_json(request.json, lab::list_json(entries));
}

std::string report_path(const LabRequest& request) {
  return request.report.empty() ? "build/lab/report.html" : request.report;
}

void check_report(const LabRequest& request) {
  if (request.report.empty()) return;
  require(!request.list, "lab: --list runs no case, so there is no report; leave out one of them");
  require(request.report != "-",
          "lab: --report takes the name of a file; only --json knows - for standard output");
  require(request.report != request.json,
          "lab: --report and --json both name {}; give each a file of its own", request.report);
  std::error_code unreadable;
  require(!std::filesystem::is_directory(request.report, unreadable),
          "lab: --report {} is a folder; name a file in it", request.report);
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts)};
}

std::string how_many(size_t cases) {
  return fmt::format("{} {}", cases, cases == 1 ? "case" : "cases");
}

// The report's directories are made; where they cannot be, writing says so.
void make_directories_of(const std::string& report) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(report).parent_path(), ignored);
}

// Both files are tried whatever becomes of the other.
void write_files(const LabRequest& request, const Json& json, const std::string& report) {
  const std::string path = report_path(request);
  std::optional<IoError> unwritten;
  try {
    make_directories_of(path);
    write_file_atomically(path, report);
  } catch (const IoError& error) {
    unwritten = error;
  }
  if (!unwritten) say(request, fmt::format("Report: {}\n", path));
  write_json(request.json, json);
  if (unwritten) throw IoError(*unwritten);
}

int run_lab(const LabRequest& request) {
  const lab::Catalogue catalogue;
  if (!request.run_case.empty()) {
    lab::run_worker(catalogue, request.run_case, request.seed);
    return 0;
  }
  constexpr double kLongest = 86400;
  require(request.deadline > 0 && request.deadline <= kLongest,
          "lab: --case-deadline takes seconds above 0, at most {} (a day), got {}", kLongest,
          request.deadline);
  require(request.parallel >= 0, "lab: --jobs must not be negative, got {}", request.parallel);
  check_report(request);
  const auto entries = catalogue.select(request.patterns, request.domain);
  require(!entries.empty(), "lab: no case is of the domain '{}' and of that name", request.domain);
  if (request.list) {
    list_cases(request, entries);
    return 0;
  }
  say(request, fmt::format("{}, seed {}\n\n", how_many(entries.size()), request.seed));
  const auto begin = std::chrono::steady_clock::now();
  const auto results = lab::run_cases(
      entries,
      {.seed = request.seed, .deadline_seconds = request.deadline, .parallel = request.parallel},
      [&](const lab::CaseResult& result) { say(request, lab::case_text(result)); });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  say(request, "\n" + lab::summary_text(results, passed.count()));
  Json json = Json::array();
  bool all_verified = true;
  for (const lab::CaseResult& result : results) {
    json.push(lab::to_json(result));
    all_verified = all_verified && result.verified();
  }
  write_files(request, json,
              lab::report_html(entries, results,
                               {.seed = request.seed, .seconds = passed.count(), .date = now()}));
  return all_verified ? 0 : 1;
}

}  // namespace

void add_lab(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "lab",
      "Run the failure cases: each fault reproduced, detected, named and proven fixed.\n"
      "Exit code 0 only if every case is verified. A report, one HTML file, is written to\n"
      "build/lab/report.html under the current folder, or where --report says.\n"
      "Example: faultline lab \"attn.*\" --seed 2\n"
      "Example: faultline lab adamw.step-counter:bf16 --json result.json");
  auto request = std::make_shared<LabRequest>();
  command->add_option("cases", request->patterns,
                      "ID, ID:VARIANT or a glob such as \"attn.*\"; all without one");
  command->add_flag("--list", request->list, "Only list the cases");
  command->add_option("--domain", request->domain, "Only cases of this domain");
  command
      ->add_option("--seed", request->seed,
                   "Of random data (default 1); no expected figure depends on it")
      ->check(whole_number<uint64_t>());
  command->add_option("--case-deadline", request->deadline,
                      "Seconds that one case may take (default 20)");
  command->add_option("--jobs", request->parallel, "Cases at a time (default: one a core)")
      ->check(whole_number<int>());
  command->add_option("--json", request->json,
                      "Write the results to a file, - for standard output");
  command->add_option("--report", request->report,
                      "Write the HTML report to this file, making its folders (default: "
                      "build/lab/report.html, if there is a folder build)");
  command->add_option("--run-case", request->run_case)->group("");  // a worker's own flag
  command->callback([request, &exit_code] { exit_code = run_lab(*request); });
}

}  // namespace faultline::cli
