#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/hf_model.h"
#include "train/run.h"

namespace faultline::train {

// A trained model and what belongs to it, from a run or a Hugging Face folder, for whoever computes
// with it rather than going on with the run.
struct ModelDirectory {
  HfConfig config;
  std::unique_ptr<nn::LanguageModel> model;
  GenerationConfig generation;
  // tokenizer.json and what belongs to it, by name, as they are; empty when there is none.
  std::map<std::string, std::string> tokenizer_files;
  bool bytes = false;                // the tokenizer is ByteTokenizer
  std::optional<RunRecord> record;   // of a run
  int64_t step = 0;                  // of a run
  std::vector<std::string> ignored;  // keys of the adapters' configurations that nobody here knows
};

// Opens `directory`: the latest checkpoint of a run, or the weights of a folder; over either, or in
// place of the run's own, the PEFT adapters in the directories `adapters`, which add up. The model
// is in evaluation mode. Throws InvalidArgument naming file and key, IoError when a file cannot be
// read.
ModelDirectory open_model(const std::string& directory,
                          const std::vector<std::string>& adapters = {});

// The files beside the weights that a run keeps of a folder: those of the tokenizer and
// generation_config.json, by name.
std::map<std::string, std::string> kept_files(const ModelDirectory& folder);
// The same of a run's directory.
std::map<std::string, std::string> kept_files(const std::string& directory);

// Makes the directory `target`, which must not be there or be empty, whole or not at all: a Hugging
// Face folder, or a run whose only checkpoint holds the weights and nothing else (`name` is what
// its record calls the model).
void write_hf_folder(const std::string& target, const ModelDirectory& source,
                     const HfSaveOptions& options);
void write_run(const std::string& target, const ModelDirectory& source, const std::string& name);

}  // namespace faultline::train
