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
  bool bytes = false;               // the tokenizer is ByteTokenizer
  std::optional<RunRecord> record;  // of a run
  int64_t step = 0;                 // of a run
  std::vector<std::string> notes;   // sentences about the adapters, for the user
};

// Throws InvalidArgument unless `directory` is a Hugging Face folder or may be a run. A config.json
// that is broken, or of a run but wrong, is left to its reader, who says where.
void check_is_model(const std::string& directory);

// Opens `directory`: the latest checkpoint of a run, or the weights of a folder; over either, or in
// place of the run's own, the PEFT adapters in the directories `adapters`, which add up. The model
// is in evaluation mode. What a folder leaves out of generation_config.json has the values that
// transformers gives it. Throws InvalidArgument naming file and key, or the file and the tensor
// that holds NaN or infinity, also for a link that leaves the folder (see path_inside) and for what
// is neither run nor folder; IoError when a file cannot be read.
ModelDirectory open_model(const std::string& directory,
                          const std::vector<std::string>& adapters = {});

// The files beside the weights that a run keeps of a folder: those of the tokenizer and
// generation_config.json, by name.
std::map<std::string, std::string> kept_files(const ModelDirectory& folder);
// The same of a run's directory.
std::map<std::string, std::string> kept_files(const std::string& directory);

// The record of a run that a folder becomes; `name` is what it calls the model.
RunRecord record_of(const ModelDirectory& folder, const std::string& name);

// Makes the directory `target`, which must not be there or be empty, whole or not at all: a Hugging
// Face folder, or a run with that record whose only checkpoint, of source.step, holds the weights
// and nothing else. A folder made of a run says that it samples, as the run does. Such a run can be
// generated from and trained over, not resumed: it has no optimizer. What `between` throws ends it,
// see write_safetensors; nothing is left then. Throws InvalidArgument when `target` is taken,
// IoError when it cannot be written.
void write_hf_folder(const std::string& target, const ModelDirectory& source,
                     const HfSaveOptions& options);
void write_run(const std::string& target, const ModelDirectory& source, const RunRecord& record,
               const BetweenTensors& between = {});

}  // namespace faultline::train
