#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "nn/models.h"
#include "optim/schedule.h"

namespace faultline::train {

// One configuration value and where it came from.
struct ConfigEntry {
  std::string key;
  std::string value;
  std::string source;  // "preset tiny", "config.json", "--set", "default", "fault"
};

// Everything that decides a run's numbers, typed. Keys are those of the command line's contract;
// `family`, `head_size`, `intermediate_size`, `rope_theta`, `rope_scaling`, `window`, `pack`,
// `init_std`, `attention`, `counted_steps`, `schedule` and `lora` are beside them.
struct Config {
  std::string family = "gpt2";  // or llama, to which the keys marked so belong alone
  int64_t num_layers = 2;
  int64_t num_heads = 2;
  int64_t num_key_value_heads = 0;  // 0: num_heads, the only number that GPT-2 knows
  int64_t hidden_size = 32;
  int64_t head_size = 0;          // llama; 0: hidden_size / num_heads
  int64_t intermediate_size = 0;  // llama; 0: 8/3 hidden_size, rounded up to a multiple of 16
  double rope_theta = 10000;      // llama
  Json rope_scaling;              // llama; Hugging Face's object, without rope_theta; null: none
  int64_t window = 0;             // keys that a position sees, itself included; 0: all
  int64_t vocab_size = 256;
  int64_t seq_len = 32;
  int64_t batch_size = 4;        // sequences of a step, over all ranks
  int64_t micro_batch_size = 0;  // sequences of one forward pass; 0: the whole batch
  double lr = 1e-3;
  double min_lr = 0;
  int64_t warmup_steps = 0;
  int64_t schedule_steps = 300;
  std::string schedule = "cosine";
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double clip_norm = 1;  // 0: measure only
  double dropout = 0;
  double init_std = 0.02;
  std::string attention = "auto";  // or what must run: math, flash; or "prefer flash", ...
  int64_t counted_steps = 0;       // what the optimizer's counter says before the first step
  uint64_t seed = 1;
  int64_t eval_every = 0;  // 0: at the end only
  std::string documents;   // "": chapter for the default corpus, none for other text
  bool pack = true;
  std::string lora;  // the adapter to train in place of the model, see train/lora.h; "": none

  // Throws InvalidArgument naming the first impossible value (zero sizes, heads that do not divide,
  // a rate that is not finite, ...).
  void check() const;
  nn::ModelConfig model() const;
  optim::Schedule learning_rate() const;
  // Makes `attention` the policy of the current Context until the guard is destroyed; null when
  // there is nothing to change.
  [[nodiscard]] std::shared_ptr<void> apply_attention_policy() const;
  // Sequences of one forward pass.
  int64_t micro_batch() const { return micro_batch_size == 0 ? batch_size : micro_batch_size; }
};

// A Config under construction, with the source of every value.
class ConfigBuilder {
 public:
  // Every key with the default of Config.
  static ConfigBuilder defaults() { return {}; }
  // "tiny", "char", "gpt2", "llama-tiny"; throws InvalidArgument with the nearest name.
  static ConfigBuilder preset(const std::string& name);
  // The names of the presets.
  static std::vector<std::string> presets();
  // A JSON object of keys; unknown keys are refused with the nearest name.
  static ConfigBuilder file(const std::string& path);
  // What to_json() of another builder gave, with the sources that it had.
  static ConfigBuilder recorded(const Json& values, const Json& sources);

  // Sets one key from its text. Throws InvalidArgument on an unknown key (with the nearest) or a
  // value that is not of the key's type.
  void set(const std::string& key, const std::string& value, const std::string& source);
  // The same from a JSON value of the key's type; `source` begins the error.
  void set_json(const std::string& key, const Json& value, const std::string& source);
  // "key=value".
  void assign(const std::string& assignment, const std::string& source);
  // Whether the user (not a preset or default or a fault) set this key, and to what.
  std::optional<std::string> user_value(const std::string& key) const;
  // Its value as text, as set() takes it. Throws InvalidArgument on an unknown key.
  const std::string& value(const std::string& key) const;

  // The checked configuration.
  Config build() const;
  const std::vector<ConfigEntry>& entries() const { return entries_; }
  // All keys and values, typed, as written to config.json; and where each came from.
  Json to_json() const;
  Json sources() const;

 private:
  ConfigBuilder();
  ConfigEntry& entry(const std::string& key);

  std::vector<ConfigEntry> entries_;  // every key, in the order in which they are shown
};

// Throw InvalidArgument when this machine's memory cannot hold the least that the model takes: to
// generate its parameters; to train also their gradients and moments, the tokens of a step and the
// logits of a forward pass. Asked before anything is built, which would end in a machine that
// swaps.
void check_memory_to_generate(const Config& config);
void check_memory_to_train(const Config& config);

// Every key, in the order in which they are shown.
std::vector<std::string> config_keys();

// The name in `names` that is closest to `text` by edit distance.
std::string nearest(const std::string& text, const std::vector<std::string>& names);
// The end of an error about an unknown name: "did you mean 'x'?" when one is near, else the list,
// or where that is long `listing`, which says what shows it.
std::string suggestion(const std::string& text, const std::vector<std::string>& names,
                       const std::string& listing = "");

}  // namespace faultline::train
