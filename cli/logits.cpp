#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "autograd/functional.h"
#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "core/context.h"
#include "io/safetensors.h"
#include "nn/gpt2.h"
#include "train/model_directory.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Writes the logits of given ids, to compare with another framework: reads the tensor `ids`\n"
    "[B, T] (I32 or I64) of a safetensors file and writes `logits` [B, T, V] and `loss` [1], the mean\n"
    "cross entropy of each next id, both F32.\n"
    "Example: faultline logits folder --ids ids.safetensors --out logits.safetensors";

struct LogitsOptions {
  std::string model;
  std::vector<std::string> adapters;
  std::string ids;
  std::string out;
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

// Labels are the next ids; the last position has none.
Tensor mean_loss(const Tensor& logits_BTV, const Tensor& ids_BT) {
  const int64_t B = ids_BT.size(0);
  const int64_t T = ids_BT.size(1);
  require(T > 1, "logits: a loss needs two ids in a row, got {}", ids_BT);
  const Tensor labels = contiguous(slice(ids_BT, 1, 1, T));
  const Tensor total = nn::language_model_loss(slice(logits_BTV, 1, 0, T - 1), labels);
  return reshape(total * (1.0 / static_cast<double>(B * (T - 1))), {1});
}

int logits(const LogitsOptions& options) {
  Context context;
  const ContextGuard guard(context);
  const NoGrad off;
  const train::ModelDirectory source = train::open_model(options.model, options.adapters);
  note_ignored(source.ignored);
  const Tensor ids_BT = read_ids(options.ids, source.model->model_shape());
  const Tensor logits_BTV = (*source.model)(ids_BT, nn::Mask{});
  const Tensor loss = mean_loss(logits_BTV, ids_BT);
  write_safetensors(options.out, {{"logits", logits_BTV}, {"loss", loss}});
  fmt::print("{}: logits {} of {} ids, loss {:.6f}\n", options.out, logits_BTV, ids_BT.numel(),
             loss.item<double>());
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
  command->callback([options, &exit_code] { exit_code = logits(*options); });
}

}  // namespace faultline::cli
