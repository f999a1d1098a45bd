#include <CLI/CLI.hpp>
#include <memory>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "core/context.h"
#include "io/peft.h"
#include "nn/lora.h"
#include "train/model_directory.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Writes an adapter into the weights of its base. DIR is the run that trained the adapter or, with "
    "--adapter, the base: a run or a Hugging Face folder. OUT is of the same kind as DIR. Weights are "
    "read, merged and written in f32.\n"
    "Example: faultline merge tuned --out merged\n"
    "Example: faultline merge run --adapter tuned/adapter --out merged";

struct MergeOptions {
  std::string run;
  std::vector<std::string> adapters;
  std::string out;
  std::string json;
};

Json json_of(const nn::Merge& merge) {
  Json layers = Json::array();
  for (const nn::LayerMerge& layer : merge.layers) {
    layers.push(Json::object()
                    .set("layer", peft_layer_name(layer.layer))
                    .set("elements", layer.elements)
                    .set("unchanged", layer.unchanged)
                    .set("survived", layer.survived));
  }
  return layers;
}

// In percent.
double share(double part, double whole) { return whole == 0 ? 0 : 100 * part / whole; }

void print_summary(const nn::Merge& merge, const std::string& out) {
  double elements = 0;
  double unchanged = 0;
  for (const nn::LayerMerge& layer : merge.layers) {
    fmt::print("{:<40} {:6.2f} % unchanged, {:6.2f} % of the update survived\n",
               peft_layer_name(layer.layer),
               share(static_cast<double>(layer.unchanged), static_cast<double>(layer.elements)),
               100 * layer.survived);
    elements += static_cast<double>(layer.elements);
    unchanged += static_cast<double>(layer.unchanged);
  }
  fmt::print("{}: {} layers merged; {:.2f} % of their weights were too coarse to change\n", out,
             merge.layers.size(), share(unchanged, elements));
}

// The model alone, without the adapter that is merged into it.
std::unique_ptr<nn::LanguageModel> bare(const train::ModelDirectory& source) {
  auto model = make_hf_model(source.config, 1);
  model->load(nn::base_state(*source.model));
  return model;
}

int merge(const MergeOptions& options) {
  train::check_free("merge: --out", options.out);
  Interrupt interrupt;
  Context context({.seed = 1});
  const ContextGuard guard(context);
  train::ModelDirectory source = train::open_model(options.run, options.adapters);
  print_notes(source.notes);
  require(
      !options.adapters.empty() || (source.record && !source.record->config.build().lora.empty()),
      "merge: '{}' trained no adapter; name one with --adapter DIR", options.run);
  const nn::Merge done = nn::merge_adapters(*source.model, nn::Originals::drop);
  source.model = bare(source);
  interrupt.note_the_next();
  const auto between = [&] { interrupt.check(); };
  if (source.record) {
    source.record->config.set("lora", "", "merge");
    train::write_run(options.out, source, *source.record, between);
  } else {
    train::write_hf_folder(options.out, source, {.between = between});
  }
  if (options.json != "-") print_summary(done, options.out);
  write_json(options.json, Json::object().set("out", options.out).set("layers", json_of(done)));
  return 0;
}

}  // namespace

void add_merge(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("merge", kHelp);
  auto options = std::make_shared<MergeOptions>();
  command->add_option("DIR", options->run, "A run or a Hugging Face folder")->required();
  command
      ->add_option("--adapter", options->adapters,
                   "A directory with a PEFT adapter (default: the one that the run trained); "
                   "repeated, they add up")
      ->allow_extra_args(false);
  command->add_option("--out", options->out, "Directory to write; new or empty")->required();
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = merge(*options); });
}

}  // namespace faultline::cli
