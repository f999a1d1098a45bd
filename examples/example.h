#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "diagnose/detector.h"
#include "io/json_lines.h"
#include "lab/planted.h"
#include "nn/module.h"
#include "train/config.h"
#include "train/trainer.h"

// What the programs of this folder share: flags, faults, the watch, and what is written. Each
// program's main is one line that calls run_example.

struct ExampleOptions {
  const char* about;  // one line for --help
  int64_t steps;      // unless --steps says otherwise
  // Its configuration. Only a program that has one can set what some faults need.
  std::optional<faultline::train::ConfigBuilder> config;
  // Seams that it asks after its last step and not before.
  std::vector<const char*> asked_later;
  // Of its own, beside those of the catalogue.
  std::vector<faultline::lab::DefineFault> faults;
  std::vector<faultline::diagnose::DetectorDefinition> detectors;
};

struct ExampleFlags {
  std::vector<std::string> faults;
  faultline::diagnose::WatchLevel watch = faultline::diagnose::WatchLevel::full;
  int64_t steps = 0;
  std::string out;
  uint64_t seed = 1;
};

// A program under way: a Context that is watched, with what --fault names planted in it.
class Example {
 public:
  Example(const ExampleFlags& flags, const ExampleOptions& options);

  faultline::Context& context() { return context_; }
  uint64_t seed() const { return context_.seed; }
  const faultline::train::Config& config() const { return config_; }

  // Goes on to the next step and plants the faults that begin there; false after the last step.
  bool next_step();
  int64_t step() const { return step_; }
  // The step is over: a line to metrics.jsonl, every tenth also to the terminal. Throws
  // InvalidArgument when a planted fault is in a seam that no step has asked. Every op asks for its
  // kernel: a fault in a kernel is taken also where that op never runs.
  void log(const faultline::train::StepResult& result);
  // The same for a loop of one's own, which also tells the detectors.
  void end_step(double loss, double lr, int64_t tokens = 0, double grad_norm = 0);

  // Runs a case as the lab does: healthy, faulty, fixed. Throws InvalidArgument unless that proves
  // it.
  void prove(const std::string& name);

  // What the detectors say, to the terminal and to verdict.json.
  void conclude();
  // After an error within the body: verdict.json, of what they saw until then.
  void give_up();

 private:
  // Throws InvalidArgument, and leaves nothing in --out, when the program never asks a planted
  // fault's seam.
  void check_asked();
  // After the first step that all of them are in.
  void tell_what_is_planted() const;
  void write_verdict() const;

  ExampleOptions options_;
  faultline::Context context_;
  faultline::ContextGuard guard_;
  faultline::lab::PlannedFaults faults_;
  faultline::train::Config config_;
  faultline::diagnose::Watch watch_;
  std::string out_;
  std::optional<faultline::JsonLinesWriter> metrics_;
  int64_t steps_;
  int64_t step_ = 0;
};

// Draws a module's weights from a normal distribution around 0, each from a stream of its own;
// biases start at 0.
void draw_weights(faultline::nn::Module& module, double deviation, uint64_t seed);

// Reads --fault, --watch, --steps, --out and --seed, runs `body` and prints the verdict. Returns
// the exit code: 0, or 2 with one line on standard error.
int run_example(int argc, char** argv, const ExampleOptions& options, void (*body)(Example&));
