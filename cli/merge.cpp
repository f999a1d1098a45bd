#include <CLI/CLI.hpp>
#include <memory>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "core/context.h"
#include "io/peft.h"
#include "train/model_directory.h"
#include "train/run.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Writes an adapter into the weights of its base, as a model that needs no adapter. DIR is "
    "a run that trained the adapter, or, with --adapter, the base of a PEFT adapter: a run or a "
    "Hugging Face folder.\n"
    "Example: faultline merge tuned --out merged\n"
    "Example: faultline merge run --adapter tuned/adapter --out merged";

struct MergeOptions {
  std::string run;
  std::string adapter;
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

void print_summary(const nn::Merge& merge, const std::string& out) {
  double elements = 0;
  double unchanged = 0;
  for (const nn::LayerMerge& layer : merge.layers) {
    elements += static_cast<double>(layer.elements);
    unchanged += static_cast<double>(layer.unchanged);
  }
  fmt::print("{}: {} layers merged; {:.2f} % of their weights were too coarse to change\n", out,
             merge.layers.size(), elements == 0 ? 0 : 100 * unchanged / elements);
}

// The base with the adapter in its weights.
train::ModelDirectory merged(const MergeOptions& options) {
  train::ModelDirectory model = train::open_model(options.run);
  const bool given = !options.adapter.empty();
  require(given || model.merge.has_value(),
          "merge: '{}' trained no adapter; name one with --adapter DIR", options.run);
  require(!given || !model.merge.has_value(),
          "merge: '{}' trained an adapter itself; merge it first, and then --adapter into that",
          options.run);
  if (model.merge) return model;
  note_ignored(
      load_peft(*model.model, "merged", options.adapter, model.model->dropout_key()).unknown);
  train::merge_into_weights(model);
  return model;
}

int merge(const MergeOptions& options) {
  train::check_free(options.out);
  Context context;
  const ContextGuard guard(context);
  const train::ModelDirectory model = merged(options);
  if (model.record) {
    train::RunRecord record = *model.record;
    record.config.set("lora", "", "merge");
    const bool from_folder = !record.architecture.is(Json::Kind::null);
    const auto files =
        from_folder ? train::kept_files(options.run) : std::map<std::string, std::string>{};
    train::create_model_run(options.out, record, 0, *model.model, files);
  } else {
    train::write_hf_folder(options.out, model, {});
  }
  if (options.json != "-") print_summary(*model.merge, options.out);
  write_json(options.json,
             Json::object().set("out", options.out).set("layers", json_of(*model.merge)));
  return 0;
}

}  // namespace

void add_merge(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("merge", kHelp);
  auto options = std::make_shared<MergeOptions>();
  command->add_option("DIR", options->run, "Directory of a run, or a Hugging Face folder")
      ->required();
  command->add_option("--adapter", options->adapter,
                      "A directory with a PEFT adapter (default: the one that the run trained)");
  command->add_option("--out", options->out, "Directory of the merged model; new or empty")
      ->required();
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = merge(*options); });
}

}  // namespace faultline::cli
