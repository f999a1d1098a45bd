#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "train/config.h"
#include "train/trainer.h"

// A run on disk. DIR holds
//   config.json            every key, its value and where it came from; data; versions
//   ranks.json             one entry a rank: what it holds and sends
//   metrics.jsonl          {step, loss, lr, grad_norm, tokens, ms} a step, {step, eval_loss} an
//                          evaluation
//   base.safetensors, adapter/   of a run that trains an adapter, see train/lora.h
//   checkpoints/step_N/    step 0, every `checkpoint_every` steps, and the last one
namespace faultline::train {

// What was trained on.
struct DataRecord {
  std::string source;  // absolute path of a file or directory; "" is the default corpus
  int64_t documents = 0;
  int64_t tokens = 0;
  std::string checksum;
};

// The content of config.json.
struct RunRecord {
  std::string model;  // name of the preset, or path of the configuration file
  ConfigBuilder config;
  DataRecord data;
  std::string isa;       // of the process that began the run
  std::string products;  // library of its matrix products
  // The config.json of the Hugging Face folder that the model came from; null: the keys of `config`
  // say all of it.
  Json architecture = {};
};

// A record of this process.
RunRecord make_record(std::string model, ConfigBuilder config, DataRecord data);
// Writes config.json.
void write_record(const std::string& directory, const RunRecord& record);
// Throws IoError or InvalidArgument when `directory` is not a run directory.
RunRecord read_record(const std::string& directory);
// What this process would compute otherwise than the one that began the run: one line each.
std::vector<std::string> differences(const RunRecord& record);

// Throws InvalidArgument unless a new directory may be written to `target`: it is not there or
// empty. `who` begins the sentence (a command and its option), `instead` ends the advice.
void check_free(const std::string& who, const std::string& target, const std::string& instead = "");

// Makes `directory` with config.json, ranks.json, the trainer's state as the first checkpoint, and
// `files` (content by name). All of it appears at once or not at all.
void create_run(const std::string& directory, const RunRecord& record, Trainer& trainer,
                const std::map<std::string, std::string>& files);

// The run's metrics as they stood after `step`, as text.
std::string metrics_until(const std::string& directory, int64_t step);

// Loads the latest checkpoint of `directory`. Returns its step.
int64_t load_latest(const std::string& directory, Trainer& trainer);

enum class Stop : uint8_t { no, interrupted, fault };

struct RunOptions {
  int64_t steps = 0;             // the last step, counted from the run's first
  int64_t checkpoint_every = 0;  // 0: only the last step
  int64_t probe_every = 0;       // of the floor and of a merge, see Trainer; 0: none
  std::function<void(int64_t step)> before_step;
  std::function<Stop()> stop;  // asked after each step and within evaluations
  std::function<void(const StepResult& result, double ms)> on_step;
  std::function<void(int64_t step, double loss)> on_evaluation;
};

struct RunResult {
  Stop stop = Stop::no;
  int64_t step = 0;
  std::optional<double> held_out_loss;  // over the whole held-out part; none when stopped early
                                        // or known already
};

// Steps until `options.steps`, writing into `directory`, which create_run made. A stop ends the run
// after a whole step, with a checkpoint; an evaluation that it cut short, or kept from beginning,
// is made up for when the run goes on.
RunResult run(Trainer& trainer, const std::string& directory, const RunOptions& options);

}  // namespace faultline::train
