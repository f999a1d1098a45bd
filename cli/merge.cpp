#include <CLI/CLI.hpp>
#include <memory>

#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "core/context.h"
#include "io/peft.h"
#include "train/lora.h"
#include "train/run.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Writes an adapter into the weights of its base, as a run that needs no adapter. DIR is a run: "
    "one that trained the adapter, or, with --adapter, the base of a PEFT adapter.\n"
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

int merge(const MergeOptions& options) {
  train::RunRecord record = train::read_record(options.run);
  const train::Config config = record.config.build();
  require(!options.adapter.empty() || !config.lora.empty(),
          "merge: '{}' trained no adapter; name one with --adapter DIR", options.run);
  train::check_free(options.out);
  train::check_memory_to_generate(config);
  Context context({.seed = config.seed});
  const ContextGuard guard(context);
  nn::Gpt2 model(config.model(), config.seed);
  const train::LoadedRun loaded = train::load_run(model, config, options.run, options.adapter);
  note_ignored(loaded.ignored);
  const nn::Merge done = nn::merge_adapters(model, nn::Originals::drop);

  record.config.set("lora", "", "merge");
  nn::Gpt2 merged(config.model(), config.seed);
  merged.load(nn::base_state(model));
  train::create_model_run(options.out, record, loaded.step, merged);
  if (options.json != "-") print_summary(done, options.out);
  write_json(options.json, Json::object().set("out", options.out).set("layers", json_of(done)));
  return 0;
}

}  // namespace

void add_merge(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("merge", kHelp);
  auto options = std::make_shared<MergeOptions>();
  command->add_option("DIR", options->run, "Directory of a run")->required();
  command->add_option("--adapter", options->adapter,
                      "A directory with a PEFT adapter (default: the one that the run trained)");
  command->add_option("--out", options->out, "Directory of the merged run; new or empty")
      ->required();
  command->add_option("--json", options->json, "Write the answer as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = merge(*options); });
}

}  // namespace faultline::cli
