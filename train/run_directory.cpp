#include <filesystem>
#include <fstream>

#include "core/context.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/folder_file.h"
#include "io/json_lines.h"
#include "io/mapped_file.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/product.h"
#include "train/lora.h"
#include "train/run.h"
#include "version.h"

namespace faultline::train {
namespace {

Json json_of(const RunRecord& record) {
  const Json data = Json::object()
                        .set("source", record.data.source)
                        .set("documents", record.data.documents)
                        .set("tokens", record.data.tokens)
                        .set("checksum", record.data.checksum);
  const Json versions = Json::object().set("faultline", version).set("products", record.products);
  Json json = Json::object();
  json.set("format", 1).set("model", record.model);
  json.set("values", record.config.to_json()).set("sources", record.config.sources());
  if (!record.architecture.is(Json::Kind::null)) json.set("architecture", record.architecture);
  return json.set("data", data).set("isa", record.isa).set("versions", versions);
}

int64_t bytes_of(const State& state, const std::string& prefix) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with(prefix)) {
      bytes += tensor.numel() * static_cast<int64_t>(size_of(tensor.dtype()));
    }
  }
  return bytes;
}

// A serial run is one rank that sends nothing and records no plan.
Json ranks_of(const State& state, int64_t parameters) {
  const int64_t gradients = bytes_of(state, "model.");  // of what is trained
  return Json::array().push(Json::object()
                                .set("rank", 0)
                                .set("world", 1)
                                .set("zero", 0)
                                .set("parameter_bytes", parameters)
                                .set("gradient_bytes", gradients)
                                .set("optimizer_bytes", bytes_of(state, "optimizer."))
                                .set("sent_bytes", 0)
                                .set("plan_captures", 0)
                                .set("plan_replays", 0));
}

}  // namespace

RunRecord make_record(std::string model, ConfigBuilder config, DataRecord data) {
  return {std::move(model), std::move(config), std::move(data), cpu::isa_name(),
          cpu::product_library()};
}

void write_record(const std::string& directory, const RunRecord& record) {
  write_file_atomically(directory + "/config.json", json_of(record).to_indented_text());
}

RunRecord read_record(const std::string& directory) {
  const std::string path = path_inside(directory, "config.json");
  require(std::filesystem::is_regular_file(path),
          "'{}' is not a run directory: there is no config.json in it; name what `faultline train "
          "--out` wrote",
          directory);
  const Json json = Json::parse(map_file(path).text(), path);
  try {
    require(json.at("format").integer() == 1, "format {} instead of 1",
            json.at("format").integer());
    const Json& data = json.at("data");
    const Json* architecture = json.find("architecture");
    return {json.at("model").text(),
            ConfigBuilder::recorded(json.at("values"), json.at("sources")),
            {data.at("source").text(), data.at("documents").integer(), data.at("tokens").integer(),
             data.at("checksum").text()},
            json.at("isa").text(),
            json.at("versions").at("products").text(),
            architecture == nullptr ? Json() : *architecture};
  } catch (const InvalidArgument& error) {
    fail(
        "'{}' is not the configuration of a run ({}); name a directory that `faultline train "
        "--out` wrote",
        path, error.what());
  }
}

std::vector<std::string> differences(const RunRecord& record) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const std::string& then, const std::string& now) {
    if (then == now) return;
    lines.push_back(fmt::format("the run began with {} {}, this is {}: the last bits may differ",
                                what, then, now));
  };
  compare("instruction set", record.isa, cpu::isa_name());
  compare("products by", record.products, cpu::product_library());
  return lines;
}

void check_free(const std::string& who, const std::string& target, const std::string& instead) {
  require(!target.empty(), "{} is empty; name a directory that is not there yet", who);
  std::error_code none;
  if (!std::filesystem::exists(target, none)) return;
  require(std::filesystem::is_directory(target, none),
          "{} '{}' is a file; name a directory that is not there yet", who, target);
  require(std::filesystem::is_empty(target, none), "{} '{}' is not empty; name another directory{}",
          who, target, instead);
}

void create_run(const std::string& directory, const RunRecord& record, Trainer& trainer,
                const std::map<std::string, std::string>& files) {
  AtomicDirectory made(directory);
  const std::string& place = made.temporary_path();
  const State state = trainer.state();
  const int64_t parameters = bytes_of(trainer.model().state(), "");
  write_record(place, record);
  write_file_atomically(place + "/ranks.json", ranks_of(state, parameters).to_indented_text());
  for (const auto& [name, content] : files) write_file_atomically(place + "/" + name, content);
  save_checkpoint(place, trainer.steps_done(), state);
  save_base(place, trainer, record.model);
  save_adapter(place, trainer);
  made.commit_new();
}

std::string metrics_until(const std::string& directory, int64_t step) {
  const std::string path = directory + "/metrics.jsonl";
  std::string text;
  if (!std::filesystem::exists(path)) return text;
  for (const Json& line : read_json_lines(path)) {
    const Json* own = line.find("step");
    if (own == nullptr || own->integer() <= step) text += line.to_text() + "\n";
  }
  return text;
}

int64_t load_latest(const std::string& directory, Trainer& trainer) {
  const auto path = latest_checkpoint(directory);
  require(path.has_value(), "'{}' has no checkpoint to go on from; start the run again", directory);
  if (!trainer.config().lora.empty()) load_saved_base(directory, trainer.model());
  const State state = load_checkpoint(*path).state;
  require(
      state.values.contains("step"),
      "'{}' holds a model without an optimizer, as convert and merge leave it; begin a run from "
      "a model folder, train an adapter over it with --lora, or generate from it",
      directory);
  trainer.load(state);
  return trainer.steps_done();
}

}  // namespace faultline::train
