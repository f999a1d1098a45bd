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
// or all-linear, the default), dropout=0.1, rslora=true, rank_pattern=PATTERN:4+PATTERN:2 and
// alpha_pattern=PATTERN:8 (for the layers whose name ends in a match, the first that matches
// counts); and, at the end, because it may hold commas, regex=EXPRESSION in place of targets. What
// is left out is r=8, alpha=8, dropout=0, rslora=false. Throws InvalidArgument for a key that is
// none of these, with the nearest, for one that is given twice, and for targets beside regex.
nn::LoraConfig lora_from_text(const std::string& text);

// The names by which a model knows the adapter that a run trains.
constexpr const char* kRunAdapter = "default";

// Adds the adapter that `config` asks for, if any, and freezes the rest. Throws InvalidArgument,
// before it allocates anything, for a rank above the smaller side of a layer and for a pattern that
// matches no layer with an adapter.
void add_run_adapter(nn::LanguageModel& model, const Config& config);

// The trained part of a run's model: all of it, or the adapter alone.
State trained_state(nn::LanguageModel& model, const Config& config);
void load_trained(nn::LanguageModel& model, const Config& config, const State& state);

// The weights of the run in `directory`, to train an adapter over. Throws InvalidArgument when it
// has no checkpoint, trains an adapter itself, or has a weight that is not finite.
State read_base(const std::string& directory);

// base.safetensors and adapter/ of a run directory; nothing for a run without an adapter. `model`
// is what the run's record calls its model: where it is the path of a folder or a run, the adapter
// names that as its base.
void save_base(const std::string& directory, Trainer& trainer, const std::string& model);
void save_adapter(const std::string& directory, Trainer& trainer);
void load_saved_base(const std::string& directory, nn::LanguageModel& model);

// Puts the PEFT adapters in the directories `adapters`, which add up, over `model`, which has the
// weights of the run or folder in `directory`; `names` are what else that goes by. The first one is
// known as kRunAdapter. Returns sentences for the user: keys that are not known here, and a name of
// another base where no checksum says that it is this one. Throws as load_peft does, and
// InvalidArgument for a directory that is named twice.
std::vector<std::string> add_adapters(nn::LanguageModel& model,
                                      const std::vector<std::string>& adapters,
                                      const std::string& directory,
                                      const std::vector<std::string>& names = {});

// Fills `model`, which `config` describes and which has no adapter yet, with the latest checkpoint
// of the run in `directory`: for a run that trains an adapter the base, with it. PEFT directories
// in `adapters` come in its place, or over the run's weights. Throws InvalidArgument that names
// file and tensor when a weight is not finite.
struct LoadedRun {
  int64_t step = 0;
  std::vector<std::string> notes;  // sentences about the adapters, for the user
};
LoadedRun load_run(nn::LanguageModel& model, const Config& config, const std::string& directory,
                   const std::vector<std::string>& adapters = {});

}  // namespace faultline::train
