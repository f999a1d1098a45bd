#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include <sys/resource.h>

#include "cli/commands.h"
#include "cli/decode_bench.h"
#include "cli/ideal_step.h"
#include "cli/json_output.h"
#include "cli/op_profile.h"
#include "core/context.h"
#include "core/rng.h"
#include "kernels/cpu/isa.h"
#include "nn/lora.h"
#include "train/trainer.h"

namespace faultline::cli {
namespace {

constexpr int kWarmUp = 2;
// AdamW reads parameter, gradient and two means, and writes parameter and means: 7 f32 an element.
constexpr double kOptimizerBytes = 7 * sizeof(float);

constexpr const char* kHelp =
    "Times training steps on random tokens, and says how near they come to what the step's matrix "
    "products and the optimizer's memory traffic take alone.\n"
    "Example: faultline bench gpt2 --batch 4 --seq 64 --json -\n"
    "Example: faultline bench gpt2 --decode --steps 32";

struct BenchOptions {
  std::string model;
  std::optional<std::string> batch, seq, lora;
  std::string dtype = "f32";
  std::string json;
  int64_t steps = 20;
  int64_t threads = 0;
  bool profile = false;
  bool decode = false;
  std::vector<std::string> settings;
};

train::ConfigBuilder configuration(const BenchOptions& options) {
  train::ConfigBuilder config = train::ConfigBuilder::preset(options.model);
  config.set("micro_batch_size", "0", "bench");  // the whole batch at once
  if (options.batch) config.set("batch_size", *options.batch, "--batch");
  if (options.seq) config.set("seq_len", *options.seq, "--seq");
  require(!options.lora || !options.lora->empty(),
          "bench: --lora is empty; give it an adapter as r=8, or leave it out");
  if (options.lora) config.set("lora", *options.lora, "--lora");
  for (const std::string& setting : options.settings) config.assign(setting, "--set");
  return config;
}

// Twenty sequences' worth of uniform ids, all in one document.
TokenStore random_tokens(const train::Config& config) {
  TokenStoreBuilder builder(config.vocab_size, 0);
  const RandomSequence random(config.seed, stream_of("bench"));
  std::vector<int32_t> ids(static_cast<size_t>(20 * (config.seq_len + 1)));
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto vocabulary = static_cast<uint64_t>(config.vocab_size - 1);
    ids[i] = 1 + static_cast<int32_t>(random.below(vocabulary, i));
  }
  builder.add_document(ids);
  return builder.finish();
}

int64_t peak_rss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

constexpr double kProfiledCopy = 256e6;  // bytes, more than any cache holds

// Steps with a listener on every launch. They are slower by what listening takes. What the machine
// reaches is measured before anybody listens.
void print_profile(train::Trainer& trainer, int64_t steps) {
  const double flops_per_ms = product_flops_per_ms();
  const double bytes_per_ms = kProfiledCopy / copy_milliseconds(kProfiledCopy);
  OpProfile profile;
  for (int64_t i = 0; i < steps; ++i) {
    profile.begin_step();
    trainer.step();
    profile.end_step();
  }
  fmt::print("{}", profile.table(flops_per_ms, bytes_per_ms));
}

int bench(const BenchOptions& options) {
  require(
      options.dtype == "f32", "bench: --dtype {}: {}", options.dtype,
      options.dtype == "bf16" ? "bf16 steps come with a later version; use f32" : "expected f32");
  require(options.steps >= 1, "bench: --steps must be at least 1, got {}", options.steps);
  require(options.threads >= 0 && options.threads <= 4096,
          "bench: --threads must be in [1, 4096], got {}", options.threads);
  require(!options.profile || options.json != "-",
          "bench: --profile prints a table and --json - leaves standard output to the JSON; name a "
          "file for --json");
  const train::Config config = configuration(options).build();
  require(config.vocab_size >= 2, "bench: vocab_size must be at least 2, got {}",
          config.vocab_size);
  if (options.decode) {
    require(!options.profile, "bench: --profile shows training steps; leave out --decode");
    run_decode_bench({.model = options.model,
                      .config = config,
                      .tokens = options.steps,
                      .threads = options.threads,
                      .json = options.json});
    return 0;
  }
  train::check_memory_to_train(config);
  Context context({.threads = static_cast<int>(options.threads), .seed = config.seed});
  const ContextGuard guard(context);
  train::Trainer trainer(config, random_tokens(config));

  std::vector<double> times;
  double loss = 0;
  for (int64_t i = 0; i < kWarmUp + options.steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    loss = trainer.step().loss;
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    if (i >= kWarmUp) times.push_back(spent.count());
  }
  const int64_t peak = peak_rss();  // before the scratch memory below

  ProductRecorder products;
  {
    const Scoped<LaunchRecorder*> recording(context.recorder, &products);
    trainer.step();
  }
  const int64_t parameters = trainer.model().parameter_count();
  const int64_t trained = nn::trainable_set(trainer.model()).trained;
  const double ideal =
      products.milliseconds() + copy_milliseconds(kOptimizerBytes * static_cast<double>(trained));
  const double ms = median(times);
  const double tokens_per_s = 1000.0 * static_cast<double>(config.batch_size * config.seq_len) / ms;

  if (options.json != "-") {
    fmt::print("{}: {} parameters, batch {} x {}, {}, {} threads, {}\n", options.model, parameters,
               config.batch_size, config.seq_len, options.dtype, context.threads, cpu::isa_name());
    fmt::print("  a step       {:10.3f} ms   {:.0f} tokens/s\n", ms, tokens_per_s);
    fmt::print("  ideal        {:10.3f} ms   efficiency {:.3f}\n", ideal, ideal / ms);
    fmt::print("  peak memory  {:10.3f} GB   loss {:.4f}\n", static_cast<double>(peak) / 1e9, loss);
  }
  write_json(options.json, Json::object()
                               .set("model", options.model)
                               .set("parameters", parameters)
                               .set("batch", config.batch_size)
                               .set("seq", config.seq_len)
                               .set("dtype", options.dtype)
                               .set("threads", context.threads)
                               .set("isa", cpu::isa_name())
                               .set("ms_per_step", ms)
                               .set("tokens_per_s", tokens_per_s)
                               .set("ideal_ms", ideal)
                               .set("efficiency", ideal / ms)
                               .set("loss", loss)
                               .set("peak_rss_bytes", peak));
  if (options.profile) print_profile(trainer, options.steps);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", kHelp);
  auto options = std::make_shared<BenchOptions>();
  command->add_option("MODEL", options->model, "gpt2, char, tiny or llama-tiny")->required();
  command->add_option("--batch", options->batch, "Sequences of a step (default: the preset's)");
  command->add_option("--seq", options->seq, "Tokens of a sequence (default: the preset's)");
  command->add_option("--lora", options->lora,
                      "Train an adapter over the frozen model: r=8,alpha=16 and more, see train");
  command->add_option("--dtype", options->dtype, "f32 (bf16 comes with a later version)");
  command->add_option("--steps", options->steps, "Steps to time, after two to warm up");
  command->add_option("--threads", options->threads, "OpenMP threads (default: all)");
  command->add_flag("--profile", options->profile,
                    "Also print where a step's time goes, by op, against its bound");
  command->add_flag("--decode", options->decode,
                    "Time --steps tokens generated one by one with a cache instead");
  command->add_option("--set", options->settings, "KEY=VALUE, may be repeated")
      ->allow_extra_args(false);
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = bench(*options); });
}

}  // namespace faultline::cli
