#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/trainer.h"

namespace faultline::cli {

// How a run is going, on standard output: one line that is written over on a terminal, else a line
// each tenth of the steps and at least every five seconds.
class Progress {
 public:
  Progress(int64_t first_step, int64_t last_step);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const train::StepResult& result);
  // Prints a line of its own above what follows.
  void say(const std::string& line);

 private:
  void overwrite(const std::string& line) const;
  std::string text(const train::StepResult& result, double seconds) const;

  int64_t first_;
  int64_t last_;
  bool terminal_;
  bool open_ = false;  // the terminal's line holds something
  int64_t tokens_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace faultline::cli
