#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "train/model_directory.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Turns a run into a Hugging Face model folder, and such a folder into a run. A folder holds "
    "config.json, generation_config.json, model.safetensors (or shards and their index) and the "
    "tokenizer; transformers opens it. A run made from a folder holds its weights, for generate; to "
    "go on training them, give the folder itself to train.\n"
    "Example: faultline convert run folder\n"
    "Example: faultline convert folder run";

struct ConvertOptions {
  std::string source;
  std::string target;
  std::string to;
  std::string json;
  int64_t shard_bytes = HfSaveOptions().shard_bytes;
};

int convert(const ConvertOptions& options) {
  require(options.to.empty() || options.to == "hf" || options.to == "run",
          "convert: --to is hf or run, got '{}'", options.to);
  require(options.shard_bytes > 0, "convert: --shard-bytes must be positive, got {}",
          options.shard_bytes);
  train::check_free("convert: DST", options.target);
  Interrupt interrupt;
  Context context({.seed = 1});
  const ContextGuard guard(context);
  const train::ModelDirectory source = train::open_model(options.source);
  const bool from_run = source.record.has_value();
  require(
      !from_run || source.record->config.build().lora.empty(),
      "convert: '{}' trains an adapter, which stands in its adapter/; for a whole model merge it "
      "first: faultline merge {} --out DIR",
      options.source, options.source);
  const std::string to = !options.to.empty() ? options.to : from_run ? "hf" : "run";
  require(!from_run || to == "hf",
          "convert: '{}' is a run already; copy it, or leave --to away for a model folder",
          options.source);
  interrupt.note_the_next();
  const auto between = [&] { interrupt.check(); };
  if (to == "hf") {
    train::write_hf_folder(options.target, source, {options.shard_bytes, between});
  } else {
    train::write_run(options.target, source, train::record_of(source, options.source), between);
  }
  if (options.json != "-") {
    fmt::print("{}: {} of {} parameters, written to {} as {}\n", options.source,
               source.config.architecture(), source.model->parameter_count(), options.target,
               to == "hf" ? "a Hugging Face folder" : "a run");
  }
  write_json(options.json, Json::object()
                               .set("source", options.source)
                               .set("target", options.target)
                               .set("to", to)
                               .set("architecture", source.config.architecture())
                               .set("parameters", source.model->parameter_count()));
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("convert", kHelp);
  auto options = std::make_shared<ConvertOptions>();
  command->add_option("SRC", options->source, "A run or a Hugging Face folder")->required();
  command->add_option("DST", options->target, "Directory to write; new or empty")->required();
  command->add_option("--to", options->to, "hf or run (default: the other kind than SRC)");
  command
      ->add_option(
          "--shard-bytes", options->shard_bytes,
          "Weights of a folder are cut into files of at most so many bytes (default 5 GiB)")
      ->check(whole_number<int64_t>());
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = convert(*options); });
}

}  // namespace faultline::cli
