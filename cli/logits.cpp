#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

#include "autograd/functional.h"
#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "io/safetensors.h"
#include "nn/gpt2.h"
#include "train/model_directory.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Writes the logits of given ids, to compare with another framework: reads the tensor `ids`\n"
    "[B, T] (I32 or I64) of a safetensors file and writes `logits` [B, T, V] and, where T is above 1,\n"
    "`loss` [1], the mean cross entropy of each next id, both F32.\n"
    "Example: faultline logits folder --ids ids.safetensors --out logits.safetensors";

struct LogitsOptions {
  std::string model;
  std::vector<std::string> adapters;
  std::string ids;
  std::string out;
  std::string json;
  int64_t threads = 0;
};

Tensor read_ids(const std::string& path, const nn::ModelShape& shape) {
  const Safetensors file = read_safetensors(path);
  const auto found = file.tensors.find("ids");
  require(found != file.tensors.end(), "logits: '{}' has no tensor 'ids'", path);
  const Tensor& ids = found->second;
  const bool whole = ids.dtype() == DType::i32 || ids.dtype() == DType::i64;
  require(whole && ids.rank() == 2 && ids.numel() > 0,
          "logits: 'ids' of '{}' must be I32 or I64 [B, T], got {}", path, ids);
  for (const int64_t id : ids.to_vector<int64_t>()) {
    require(id >= 0 && id < shape.vocab_size,
            "logits: 'ids' of '{}' holds {}; the vocabulary has ids 0 to {}", path, id,
            shape.vocab_size - 1);
  }
  return cast(ids, DType::i32);
}

// Labels are the next ids; the last position has none. T is above 1.
Tensor mean_loss(const Tensor& logits_BTV, const Tensor& ids_BT) {
  const int64_t B = ids_BT.size(0);
  const int64_t T = ids_BT.size(1);
  const Tensor labels = contiguous(slice(ids_BT, 1, 1, T));
  const Tensor total = nn::language_model_loss(slice(logits_BTV, 1, 0, T - 1), labels);
  return reshape(total * (1.0 / static_cast<double>(B * (T - 1))), {1});
}

// Throws unless the answer may be written: the ids would be gone.
void check_out(const LogitsOptions& options) {
  std::error_code none;
  require(!std::filesystem::equivalent(options.out, options.ids, none),
          "logits: --out '{}' is the file of --ids; name another one", options.out);
}

// Says what was written.
void report(const LogitsOptions& options, const Tensor& logits_BTV, const Tensor& loss) {
  const int64_t ids = logits_BTV.size(0) * logits_BTV.size(1);
  const Json value = loss.defined() ? Json(loss.item<double>()) : Json();
  if (options.json != "-") {
    fmt::print("{}: logits {} of {} ids{}\n", options.out, logits_BTV, ids,
               loss.defined() ? fmt::format(", loss {:.6f}", loss.item<double>()) : "");
  }
  write_json(options.json,
             Json::object()
                 .set("out", options.out)
                 .set("shape", Json::array_of(std::vector<int64_t>(logits_BTV.shape().begin(),
                                                                   logits_BTV.shape().end())))
                 .set("loss", value));
}

int logits(const LogitsOptions& options) {
  check_out(options);
  require(options.threads >= 0 && options.threads <= 4096,
          "logits: --threads must be in [1, 4096], got {}", options.threads);
  Context context({.threads = static_cast<int>(options.threads)});
  const ContextGuard guard(context);
  const NoGrad off;
  const train::ModelDirectory source = train::open_model(options.model, options.adapters);
  print_notes(source.notes);
  std::shared_ptr<void> policy;
  if (source.record) policy = source.record->config.build().apply_attention_policy();
  const Tensor ids_BT = read_ids(options.ids, source.model->model_shape());
  const Tensor logits_BTV = (*source.model)(ids_BT, nn::Mask{});
  std::map<std::string, Tensor> tensors{{"logits", logits_BTV}};
  Tensor loss;
  if (ids_BT.size(1) > 1) loss = tensors["loss"] = mean_loss(logits_BTV, ids_BT);
  write_safetensors(options.out, tensors);
  report(options, logits_BTV, loss);
  return 0;
}

}  // namespace

void add_logits(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("logits", kHelp);
  auto options = std::make_shared<LogitsOptions>();
  command->add_option("DIR", options->model, "A run or a Hugging Face folder")->required();
  command
      ->add_option("--adapter", options->adapters,
                   "A directory with a PEFT adapter for the model; repeated, they add up")
      ->allow_extra_args(false);
  command->add_option("--ids", options->ids, "A safetensors file with the ids")->required();
  command->add_option("--out", options->out, "The safetensors file to write")->required();
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_option("--json", options->json,
                      "Write shape and loss as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = logits(*options); });
}

}  // namespace faultline::cli
