#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "cli/commands.h"
#include "cli/dispatch_report.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text_data.h"
#include "cli/whole_number.h"
#include "core/threads.h"
#include "diagnose/verdict.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/directory_lock.h"
#include "io/hf_model.h"
#include "io/json_lines.h"
#include "lab/planted.h"
#include "train/lora.h"
#include "train/loss_text.h"
#include "train/model_origin.h"
#include "train/open_tokenizer.h"
#include "train/run.h"

namespace faultline::cli {
namespace {

constexpr int64_t kProbeEvery = 50;

constexpr const char* kHelp =
    "Trains a GPT-2 or Llama and writes the run to a directory. MODEL is a preset (tiny, char, "
    "gpt2, llama-tiny), a JSON file of configuration keys, or a Hugging Face folder, from whose "
    "weights the run begins; with --lora also a run. A preset wins over a folder of its name, which "
    "is ./tiny then. Ctrl-C saves a checkpoint and ends the run.\n"
    "Example: faultline train char --out run --data book.txt --set dropout=0.1\n"
    "Example: faultline train --resume run --steps 2000\n"
    "Example: faultline train tiny --steps 400 --watch full --fault mystery:7 --out run";

struct TrainOptions {
  std::string model;
  std::string out;
  std::string resume;
  std::optional<std::string> data;
  std::optional<int64_t> steps;
  std::vector<std::string> settings;
  std::optional<std::string> lr, batch, seq, seed, lora;
  std::vector<std::string> faults;
  std::string watch = "light";
  int64_t checkpoint_every = 0;
  int64_t threads = 0;
  bool stop_on_fault = false;
  bool print_config = false;
  bool dispatch_report = false;
};

bool is_run(const std::string& path) {
  return std::filesystem::is_directory(path) &&
         std::filesystem::is_directory(path + "/checkpoints");
}

// A preset's name is never that of a folder: ./tiny is the folder.
bool is_preset(const std::string& model) {
  const auto presets = train::ConfigBuilder::presets();
  return std::find(presets.begin(), presets.end(), model) != presets.end();
}

// Whether a model's name stands for a run, or for a Hugging Face folder.
bool names_run(const std::string& model) { return !is_preset(model) && is_run(model); }
bool names_folder(const std::string& model) { return !is_preset(model) && is_hf_folder(model); }

// The configuration that a model's name stands for. That of a run is the one it had.
train::ConfigBuilder builder_of(const std::string& model) {
  if (is_preset(model)) return train::ConfigBuilder::preset(model);
  if (is_run(model)) return train::read_record(model).config;
  if (std::filesystem::is_directory(model)) {
    return train::keys_of(read_hf_folder_config(model), model);
  }
  const bool file = std::filesystem::exists(model) || model.ends_with(".json") ||
                    model.find('/') != std::string::npos;
  return file ? train::ConfigBuilder::file(model) : train::ConfigBuilder::preset(model);
}

// What the command line sets, over the model's own values.
void apply_flags(const TrainOptions& options, train::ConfigBuilder& config) {
  for (const std::string& setting : options.settings) config.assign(setting, "--set");
  const auto flag = [&](const std::optional<std::string>& value, const char* name,
                        const char* key) {
    if (value) config.set(key, *value, name);
  };
  flag(options.lr, "--lr", "lr");
  flag(options.batch, "--batch", "batch_size");
  flag(options.seq, "--seq", "seq_len");
  flag(options.seed, "--seed", "seed");
  flag(options.lora, "--lora", "lora");
}

// A resumed run keeps its configuration: the command line may repeat its values, and change only
// what no number depends on.
void require_same(const TrainOptions& options, const train::RunRecord& earlier,
                  const train::ConfigBuilder& asked) {
  for (const train::ConfigEntry& entry : asked.entries()) {
    const std::string& before = earlier.config.value(entry.key);
    require(entry.value == before || entry.key == "eval_every",
            "train: --resume {} began with {}={}, now it is asked for {} ({}); begin a new run to "
            "change it",
            options.resume, entry.key, before, entry.value, entry.source);
  }
}

// A model named beside --resume must be the one that the run began with.
void require_same_model(const TrainOptions& options, const train::RunRecord& earlier) {
  if (options.model.empty() || options.model == earlier.model) return;
  const train::ConfigBuilder named = builder_of(options.model);
  for (const train::ConfigEntry& entry : named.entries()) {
    if (entry.source == "default" || earlier.config.user_value(entry.key)) continue;
    require(entry.value == earlier.config.value(entry.key),
            "train: --resume {} is a run of {} with {}={}; {} has {}={}", options.resume,
            earlier.model, entry.key, earlier.config.value(entry.key), options.model, entry.key,
            entry.value);
  }
}

void print_config(const train::ConfigBuilder& config) {
  for (const train::ConfigEntry& entry : config.entries()) {
    const std::string value = entry.value.empty() ? "\"\"" : entry.value;
    fmt::print("{:<20} {:<12} {}\n", entry.key, value, entry.source);
  }
}

// One `faultline train`, from its options to its exit code. Everything that can be refused is
// refused before the first file is written.
class TrainCommand {
 public:
  explicit TrainCommand(const TrainOptions& options)
      : options_(options),
        level_(diagnose::watch_level_from_name(options.watch)),
        faults_(options.faults) {}

  int run() {
    read_configuration();
    if (options_.print_config) {
      print_config(*config_);
      return 0;
    }
    choose_directory();
    Interrupt interrupt;
    if (in_place_) lock_.emplace(directory_);
    const train::Config config = config_->build();
    Context context({.threads = static_cast<int>(options_.threads), .seed = config.seed});
    const ContextGuard guard(context);
    if (options_.dispatch_report) dispatch_.emplace();
    faults_.check_onsets(last_step(config));

    tokenizer_ = open_tokenizer();
    TextData text = load_data(config);
    const diagnose::Watch watch(context, level_);
    faults_.plant(context, 1);
    origin_ = model_origin(config);
    train::Trainer trainer(config, std::move(text.tokens), std::move(origin_.model));
    if (!earlier_ && names_run(options_.model)) {
      nn::load_base(trainer.model(), train::read_base(options_.model));
    }
    if (earlier_) train::load_latest(options_.resume, trainer);
    interrupt.note_the_next();
    write_directory(trainer, text.record);
    if (!in_place_) lock_.emplace(directory_);
    return train(context, trainer, watch, interrupt);
  }

 private:
  void read_configuration() {
    require(
        !options_.model.empty() || !options_.resume.empty(),
        "train: name a model: a preset (tiny, char, gpt2, llama-tiny), a JSON file or a Hugging "
        "Face folder");
    require(!options_.steps || *options_.steps >= 0, "train: --steps must not be negative, got {}",
            options_.steps.value_or(0));
    require(options_.checkpoint_every >= 0,
            "train: --checkpoint-every must not be negative, got {}", options_.checkpoint_every);
    require(!options_.data || !options_.data->empty(),
            "train: --data is empty; name a file or a directory, or leave it out for the default "
            "corpus");
    require(!options_.lora || !options_.lora->empty(),
            "train: --lora is empty; give it an adapter as r=8,alpha=16, or leave it out to train "
            "the whole model");
    require(options_.threads >= 0 && options_.threads <= 4096,
            "train: --threads must be in [1, 4096], got {}", options_.threads);
    if (!options_.resume.empty()) {
      earlier_ = train::read_record(options_.resume);
      require_same_model(options_, *earlier_);
    }
    config_ = earlier_ ? earlier_->config : builder_of(options_.model);
    apply_flags(options_, *config_);
    if (earlier_) {
      require_same(options_, *earlier_, *config_);
      faults_.check_resume(options_.resume, *config_);
    }
    own_documents_ = config_->value("documents");
    const std::vector<std::string> needs = faults_.apply_needs(*config_);
    const train::Config config = config_->build();
    if (!earlier_ && names_run(options_.model)) {
      require(
          !config.lora.empty(),
          "train: '{}' is a run; train an adapter for its model with --lora r=8,alpha=16, or go "
          "on with it by --resume {}",
          options_.model, options_.model);
    }
    for (const std::string& line : needs) fmt::print("{}\n", line);
  }

  void choose_directory() {
    directory_ = options_.out.empty() ? options_.resume : options_.out;
    require(!directory_.empty(), "train: say where the run goes: --out DIR");
    std::error_code none;
    in_place_ = earlier_ && std::filesystem::equivalent(directory_, options_.resume, none);
    if (in_place_) return;
    train::check_free(
        "train: --out", directory_,
        fmt::format(", or go on with the run that is in it by --resume {}", directory_));
  }

  train::ModelOrigin model_origin(const train::Config& config) const {
    if (earlier_) return train::origin_of(*earlier_, options_.resume, config.seed);
    if (names_run(options_.model)) {
      return train::origin_of(train::read_record(options_.model), options_.model, config.seed);
    }
    return names_folder(options_.model) ? train::begin_from(options_.model, *config_)
                                        : train::ModelOrigin{};
  }

  int64_t last_step(const train::Config& config) const {
    return options_.steps.value_or(config.schedule_steps);
  }

  std::unique_ptr<Tokenizer> open_tokenizer() const {
    if (earlier_) return train::open_tokenizer(options_.resume);
    if (names_run(options_.model) || names_folder(options_.model)) {
      return train::open_tokenizer(options_.model);
    }
    return std::make_unique<ByteTokenizer>();
  }
  // What a loss is the mean of.
  const char* unit() const {
    return dynamic_cast<const ByteTokenizer*>(tokenizer_.get()) != nullptr ? "byte" : "token";
  }

  TextData load_data(const train::Config& config) const {
    if (options_.data || !earlier_) return load_named(options_.data.value_or(""), config);
    try {
      return load_text(earlier_->data.source, config, *tokenizer_);
    } catch (const IoError& error) {
      throw IoError(fmt::format("{}; {} was trained on it, say with --data where it is now",
                                error.what(), options_.resume));
    }
  }

  // A text may be one that can be read, but not as a fault needs it.
  TextData load_named(const std::string& path, const train::Config& config) const {
    try {
      return load_text(path, config, *tokenizer_);
    } catch (const InvalidArgument&) {
      if (config.documents == own_documents_) throw;
      train::Config own = config;
      own.documents = own_documents_;
      load_text(path, own, *tokenizer_);  // throws what is wrong with the text itself
      faults_.refuse_text();
      throw;
    }
  }

  // A new run, a resumed one elsewhere (with the lines up to its checkpoint), or one that goes on
  // in place.
  void write_directory(train::Trainer& trainer, const train::DataRecord& data) {
    const int64_t step = trainer.steps_done();
    const std::string planted = options_.resume + "/faults.json";  // by an earlier part of the run
    const bool was_planted = earlier_ && std::filesystem::exists(planted);
    std::map<std::string, std::string> files;
    if (!faults_.empty() || was_planted) {
      files["faults.json"] = faults_.to_json(earlier_ ? planted : "", step);
    }
    if (in_place_) {
      cut_back(directory_ + "/metrics.jsonl", step);
      for (const auto& [name, text] : files) write_file_atomically(directory_ + "/" + name, text);
    } else {
      if (earlier_) files["metrics.jsonl"] = train::metrics_until(options_.resume, step);
      train::RunRecord record =
          train::make_record(earlier_ ? earlier_->model : options_.model, *config_, data);
      record.architecture = origin_.architecture;
      files.insert(origin_.files.begin(), origin_.files.end());
      train::create_run(directory_, record, trainer, files);
    }
    if (!earlier_) return;
    for (const std::string& line : train::differences(*earlier_)) {
      fmt::print(stderr, "note: {}\n", line);
    }
    if (faults_.empty() && was_planted) {
      fmt::print(stderr,
                 "note: {} was trained with faults (faults.json); it goes on without them\n",
                 options_.resume);
    }
  }

  int train(Context& context, train::Trainer& trainer, const diagnose::Watch& watch,
            const Interrupt& interrupt) {
    const int64_t first = trainer.steps_done() + 1;
    const int64_t last = last_step(trainer.config());
    Progress progress(first, last);
    const nn::TrainableSet set = nn::trainable_set(trainer.model());
    const std::string trained = set.frozen == 0 ? "" : fmt::format(" ({} trained)", set.trained);
    progress.say(fmt::format("{}: {} parameters{}, {} threads, steps {} to {}, watch {}, into {}",
                             earlier_ ? earlier_->model : options_.model, set.trained + set.frozen,
                             trained, context.threads, first, last, diagnose::name(level_),
                             directory_));
    for (const std::string& line : faults_.lines()) progress.say(line);
    if (first > last) progress.say(fmt::format("the run is at step {} already", first - 1));

    train::RunOptions plan;
    plan.steps = last;
    plan.checkpoint_every = options_.checkpoint_every;
    plan.probe_every = level_ >= diagnose::WatchLevel::full ? kProbeEvery : 0;
    plan.before_step = [&](int64_t step) { faults_.plant(context, step); };
    plan.stop = [&] { return stop(interrupt, watch); };
    plan.on_step = [&](const train::StepResult& result, double) { progress.step(result); };
    plan.on_evaluation = [&](int64_t step, double loss) {
      if (step != last) {
        progress.say(fmt::format("step {}: about {} nats per {} on held-out text", step,
                                 train::loss_text(loss), unit()));
      }
    };
    // A resume that has nothing to do leaves the verdict of those who did.
    const auto judge = [&] {
      if (!earlier_ || trainer.steps_done() >= first) write_verdict(watch);
    };
    try {
      const train::RunResult result = train::run(trainer, directory_, plan);
      judge();
      return conclude(result, watch, progress);
    } catch (const Error&) {
      try {
        judge();
      } catch (const IoError&) {  // the first error says more
      }
      throw;
    }
  }

  train::Stop stop(const Interrupt& interrupt, const diagnose::Watch& watch) const {
    if (interrupt.requested()) return train::Stop::interrupted;
    const bool found = options_.stop_on_fault && watch.findings().beyond_hints();
    return found ? train::Stop::fault : train::Stop::no;
  }

  void write_verdict(const diagnose::Watch& watch) const {
    if (level_ != diagnose::WatchLevel::off) diagnose::write_verdict(directory_, watch);
  }

  int conclude(const train::RunResult& result, const diagnose::Watch& watch,
               Progress& progress) const {
    if (result.held_out_loss) {
      progress.say(fmt::format("step {}: validation loss {} nats per {} (all held-out text)",
                               result.step, train::loss_text(*result.held_out_loss), unit()));
    }
    if (result.stop == train::Stop::interrupted) {
      progress.say(
          fmt::format("stopped at step {}, saved; go on with: faultline train --resume {}{}",
                      result.step, directory_, again()));
    }
    if (!watch.findings().empty()) progress.say(diagnose::verdict_text(watch));
    if (dispatch_) progress.say(dispatch_->table());
    return result.stop == train::Stop::fault ? 1 : 0;
  }

  // The faults as a resume must name them to go on with them.
  std::string again() const {
    std::string flags;
    for (const std::string& fault : options_.faults) flags += " --fault " + fault;
    return flags;
  }

  const TrainOptions& options_;
  diagnose::WatchLevel level_;
  lab::PlannedFaults faults_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<train::RunRecord> earlier_;
  std::optional<train::ConfigBuilder> config_;
  train::ModelOrigin origin_;  // what the run took from a model folder, the model itself moved on
  std::string own_documents_;  // before a fault set it
  std::string directory_;
  bool in_place_ = false;
  std::optional<DispatchReport> dispatch_;
  std::optional<DirectoryLock> lock_;  // two runs in one directory would tear its files
};

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", kHelp);
  auto options = std::make_shared<TrainOptions>();
  command->add_option(
      "MODEL", options->model,
      "tiny, char, gpt2, llama-tiny, a JSON file of keys, or a Hugging Face folder; with --lora "
      "also a run");
  command->add_option("--out", options->out, "Directory of the run; new or empty");
  command
      ->add_option("--steps", options->steps,
                   "Last step, counted from the run's first (default: schedule_steps)")
      ->check(whole_number<int64_t>());
  command->add_option("--resume", options->resume,
                      "Go on with this run, in place or into another --out");
  command->add_option("--data", options->data,
                      "A text file, or a directory of them (default: the King James Bible)");
  command
      ->add_option("--set", options->settings,
                   "KEY=VALUE, may be repeated; --print-config shows the keys")
      ->allow_extra_args(false);
  command->add_option("--lr", options->lr, "Key lr: the highest learning rate");
  command->add_option("--batch", options->batch, "Key batch_size: sequences of a step");
  command->add_option("--seq", options->seq, "Key seq_len: tokens of a sequence");
  command->add_option("--seed", options->seed, "Key seed: of initialisation, order and dropout");
  command->add_option(
      "--lora", options->lora,
      "Key lora: freeze the model and train a low-rank adapter, r=8,alpha=16; also "
      "targets=c_attn+c_proj (default all-linear), dropout=P, rslora=true, "
      "rank_pattern=c_attn:4+PATTERN:R, alpha_pattern=PATTERN:A, and last regex=EXPRESSION in "
      "place of targets");
  command->add_option("--watch", options->watch,
                      "off, light (default: counters, labels and losses), full (reads tensors), "
                      "deep (runs more)");
  command
      ->add_option(
          "--fault", options->faults,
          "ID[:VARIANT][@step=N,rank=R] of a fault to plant, may be repeated; see "
          "faultline lab --list. mystery:SEED draws one, and only faultline reveal tells "
          "which; config.json and --print-config show the settings that it needs: they are "
          "part of the evidence")
      ->allow_extra_args(false);
  command->add_flag("--stop-on-fault", options->stop_on_fault,
                    "Stop and exit 1 when a fault is found");
  command
      ->add_option("--checkpoint-every", options->checkpoint_every,
                   "Steps between checkpoints (default: only the first and the last)")
      ->check(whole_number<int64_t>());
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_flag("--print-config", options->print_config,
                    "Show every key, its value and where it came from, and exit");
  command->add_flag("--dispatch-report", options->dispatch_report,
                    "Print at the end which implementations of attention ran, on what, and why; "
                    "--set attention=auto|math|flash chooses");
  command->callback([options, &exit_code] { exit_code = TrainCommand(*options).run(); });
}

}  // namespace faultline::cli
