#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "autograd/functional.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "core/context.h"
#include "diagnose/attention_judge.h"
#include "io/safetensors.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Checks an implementation of attention by its answers to probes. --emit writes the probes, your\n"
    "code answers them, --judge names the mistake that explains the answers.\n"
    "Example: faultline check-attention --emit probes.safetensors\n"
    "Example: faultline check-attention --judge answers.safetensors";

// What a user runs between the two; docs/attention.md shows the same lines.
constexpr const char* kScript =
    R"(import torch, safetensors.torch as st
probes = st.load_file("{}")
answer = lambda n: torch.nn.functional.scaled_dot_product_attention(
    probes[n + ".q"], probes[n + ".k"], probes[n + ".v"], probes[n + ".mask"], enable_gqa=True)
names = [key[:-2] for key in probes if key.endswith(".q") and key != "softcap.q"]
st.save_file({{n: answer(n) for n in names}}, "answers.safetensors")
)";

struct CheckOptions {
  std::string emit;
  std::string judge;
  std::string dtype = "f32";
  std::string json;
};

DType dtype_named(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (text == name(dtype)) return dtype;
  }
  fail("check-attention: --dtype must be f32, f16 or bf16, got '{}'", text);
}

void emit(const CheckOptions& options) {
  const DType dtype = dtype_named(options.dtype);
  std::map<std::string, Tensor> tensors =
      diagnose::probe_tensors(diagnose::attention_probes(dtype));
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype() == DType::f32) tensor = cast(tensor, dtype);
  }
  write_safetensors(options.emit, tensors);
  fmt::print(
      "Wrote {} tensors to {}: NAME.q [B, H, Q, D], NAME.k and NAME.v [B, G, K, D], and NAME.mask\n"
      "[B, 1, Q, K], true where a query may see a key. Store attention of each, scaled by\n"
      "1 / sqrt(D), as the tensor NAME (of 'softcap' with scores capped by 2 tanh(score / 2)).\n"
      "For PyTorch:\n\n{}\nThen: faultline check-attention --judge answers.safetensors\n",
      tensors.size(), options.emit, fmt::format(kScript, options.emit));
}

const char* verdict_of(const diagnose::AttentionVerdict& verdict) {
  return verdict.wrong() == 0 ? "healthy" : "fault";
}

Json json_of(const diagnose::AttentionMistake& mistake) {
  return Json::object()
      .set("cause", mistake.cause)
      .set("what", mistake.what)
      .set("fix", mistake.fix);
}

Json json_of(const diagnose::AttentionVerdict& verdict) {
  Json probes = Json::array();
  for (const diagnose::ProbeVerdict& probe : verdict.probes) {
    Json row = Json::object().set("probe", probe.probe).set("answered", probe.answered);
    if (probe.answered) {
      row.set("right", probe.right()).set("error", probe.error).set("bound", probe.bound);
    }
    probes.push(row);
  }
  Json named = Json::array();
  for (const diagnose::AttentionMistake* mistake : verdict.named) named.push(json_of(*mistake));
  Json answer = Json::object()
                    .set("verdict", verdict_of(verdict))
                    .set("mistakes", named)
                    .set("probes", probes);
  if (verdict.named.empty() && verdict.nearest != nullptr) {
    answer.set("nearest", json_of(*verdict.nearest).set("explains", verdict.nearest_explains));
  }
  return answer;
}

void print(const diagnose::AttentionVerdict& verdict) {
  for (const diagnose::ProbeVerdict& probe : verdict.probes) {
    const std::string result = !probe.answered ? "not answered"
                               : probe.right() ? fmt::format("right, within {:.1e}", probe.bound)
                                               : fmt::format("WRONG by {:.3g}", probe.error);
    fmt::print("{:32} {:22} {}\n", probe.probe, result, probe.asks);
  }
  fmt::print("\n");
  if (verdict.wrong() == 0) {
    fmt::print("All {} answers are right.\n", verdict.answered());
    return;
  }
  for (const diagnose::AttentionMistake* mistake : verdict.named) {
    fmt::print("{}{}{}\n  Fix: {}\n", mistake->cause, *mistake->cause != 0 ? ": " : "",
               mistake->what, mistake->fix);
  }
  if (!verdict.named.empty()) return;
  fmt::print("No single known mistake explains all {} wrong answers.\n", verdict.wrong());
  if (verdict.nearest != nullptr) {
    fmt::print("Nearest, with {} of them: {} {}\n", verdict.nearest_explains,
               verdict.nearest->cause, verdict.nearest->what);
  }
}

int judge(const CheckOptions& options) {
  const Safetensors file = read_safetensors(options.judge);
  require(!file.tensors.empty(), "check-attention: '{}' holds no tensor", options.judge);
  const DType given = file.tensors.begin()->second.dtype();
  for (const auto& [name, tensor] : file.tensors) {
    require(tensor.dtype() == given,
            "check-attention: '{}' holds answers in {} ('{}') and {}; give all in one dtype, that "
            "of the probes",
            options.judge, faultline::name(tensor.dtype()), name, faultline::name(given));
  }
  const DType inputs = given == DType::f64 ? DType::f32 : given;
  const auto verdict = diagnose::judge_attention(diagnose::attention_probes(inputs), file.tensors);
  if (options.json != "-") print(verdict);
  write_json(options.json, json_of(verdict));
  return verdict.wrong() == 0 ? 0 : 1;
}

int check_attention(const CheckOptions& options) {
  require(options.emit.empty() != options.judge.empty(),
          "check-attention: give --emit FILE or --judge FILE");
  Context context;
  const ContextGuard guard(context);
  if (!options.judge.empty()) return judge(options);
  emit(options);
  return 0;
}

}  // namespace

void add_check_attention(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("check-attention", kHelp);
  auto options = std::make_shared<CheckOptions>();
  command->add_option("--emit", options->emit, "Write the probes to a safetensors file");
  command->add_option("--judge", options->judge, "Judge the answers in a safetensors file");
  command->add_option("--dtype", options->dtype, "Of the probes: f32 (default), f16 or bf16");
  command->add_option("--json", options->json, "Write the verdict as JSON to a file, - for stdout");
  command->callback([options, &exit_code] { exit_code = check_attention(*options); });
}

}  // namespace faultline::cli
