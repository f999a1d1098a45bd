#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/language_model.h"
#include "nn/lora.h"
#include "train/config.h"

// A run that trains an adapter (the key `lora`) has beside what every run has:
//   base.safetensors   the frozen base, once
//   adapter/           the adapter of the latest checkpoint in PEFT's form
// Its checkpoints hold the adapter and its moments only.
namespace faultline::train {

class Trainer;

// Reads "r=8,alpha=16", and after commas targets=c_attn+c_proj (names of layers as PEFT has them,
// or all-linear, the default), dropout=0.1, rslora=true; and, at the end, because it may hold
// commas, regex=EXPRESSION in place of targets. What is left out is r=8, alpha=8, dropout=0,
// rslora=false. Throws InvalidArgument with the nearest name for a key that is none of these.
nn::LoraConfig lora_from_text(const std::string& text);

// The names by which a model knows the adapter that a run trains.
constexpr const char* kRunAdapter = "default";

// Adds the adapter that `config` asks for, if any, and freezes the rest.
void add_run_adapter(nn::LanguageModel& model, const Config& config);

// The trained part of a run's model: all of it, or the adapter alone.
State trained_state(nn::LanguageModel& model, const Config& config);
void load_trained(nn::LanguageModel& model, const Config& config, const State& state);

// Puts the PEFT adapter in the directory `adapter` over `model`, which has the weights of the run
// or folder in `directory`; `names` are what else that goes by. Returns sentences for the user:
// keys that are not known here, and a name of another base where no checksum says that it is this
// one. Throws as load_peft does.
std::vector<std::string> load_adapter(nn::LanguageModel& model, const std::string& adapter,
                                      const std::string& directory,
                                      const std::vector<std::string>& names = {});

// The weights of the run in `directory`, to train an adapter over. Throws InvalidArgument when it
// has no checkpoint, trains an adapter itself, or has a weight that is not finite.
State read_base(const std::string& directory);

// base.safetensors and adapter/ of a run directory; nothing for a run without an adapter. `model`
// is what the run's record calls its model: where it is the path of a folder or a run, the adapter
// names that as its base.
void save_base(const std::string& directory, Trainer& trainer, const std::string& model);
void save_adapter(const std::string& directory, Trainer& trainer);
void load_saved_base(const std::string& directory, nn::LanguageModel& model);

// Fills `model`, which `config` describes and which has no adapter yet, with the latest checkpoint
// of the run in `directory`: for a run that trains an adapter the base, with it. With `adapter`, a
// PEFT directory, that one comes in its place, or over the run's weights. Throws InvalidArgument
// that names file and tensor when a weight is not finite.
struct LoadedRun {
  int64_t step = 0;
  std::vector<std::string> notes;  // sentences about the adapter, for the user
};
LoadedRun load_run(nn::LanguageModel& model, const Config& config, const std::string& directory,
                   const std::string& adapter = "");

}  // namespace faultline::train
