#pragma once

#include <functional>

#include "lab/catalogue.h"
#include "lab/result.h"

// Runs each case in a process of its own: this program executed again, with one kernel thread,
// which hands back one JSON document through a pipe. A crash or a hang is that case's failure and
// ends nothing else.
namespace faultline::lab {

struct RunnerOptions {
  uint64_t seed = 1;
  double deadline_seconds = 20;  // of one case; then its process is killed
  int parallel = 0;              // cases at a time; 0: as many as there are cores
  // What to append to this program's own path so that it ends up in run_worker; the case's full
  // name and the seed follow.
  std::vector<std::string> worker_arguments = {"lab", "--run-case"};
  std::vector<std::string> worker_environment;  // further "NAME=value"
};

// Calls `on_result` in the order of `entries`, each as soon as it and all before it are there.
std::vector<CaseResult> run_cases(const std::vector<Catalogue::Entry>& entries,
                                  const RunnerOptions& options,
                                  const std::function<void(const CaseResult&)>& on_result = {});

// The other side: runs the case named `full_name` here and writes its result to the pipe that
// run_cases opened. Throws IoError when there is none.
void run_worker(const Catalogue& catalogue, const std::string& full_name, uint64_t seed);

}  // namespace faultline::lab
