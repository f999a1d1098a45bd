#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <set>

#include "autograd/functional.h"
#include "cli/adapter_note.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/whole_number.h"
#include "core/context.h"
#include "diagnose/attention_checks.h"
#include "diagnose/attention_judge.h"
#include "io/hf_model.h"
#include "io/safetensors.h"
#include "lab/catalogue.h"
#include "train/model_directory.h"
#include "train/run.h"

namespace faultline::cli {
namespace {

constexpr const char* kHelp =
    "Checks the attention, cache and positions of a model, a run or a Hugging Face folder, against\n"
    "themselves and against rules; or an implementation of attention by its answers to probes:\n"
    "--emit writes the probes, your code answers them, --judge names the mistake that explains the\n"
    "answers. Exits 1 when something is wrong, 2 when it cannot be judged.\n"
    "Example: faultline check-attention run\n"
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
  std::string directory;
  std::vector<std::string> adapters;
  std::vector<std::string> faults;
  int64_t threads = 0;
  std::string emit;
  std::string judge;
  std::string dtype = "f32";
  bool has_dtype = false;  // the user gave one
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
  if (verdict.wrong() > 0) return "fault";
  return verdict.missing().empty() ? "healthy" : "undecided";
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
    const auto probes = std::ssize(verdict.probes);
    if (verdict.answered() == probes) {
      fmt::print("All {} answers are right.\n", probes);
    } else {
      fmt::print("{} of {} answered, right; {} not answered.\n", verdict.answered(), probes,
                 probes - verdict.answered());
    }
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
  if (verdict.wrong() > 0) return 1;
  const std::vector<std::string> missing = verdict.missing();
  require(missing.empty(),
          "check-attention: cannot judge '{}': {} probes have no answer ({}); answer all of them, "
          "'softcap' excepted",
          options.judge, missing.size(), fmt::join(missing, ", "));
  return 0;
}

// ---- of a model ---------------------------------------------------------------------------------

Json json_of(const std::vector<diagnose::AttentionCheck>& checks, bool fault) {
  Json ran = Json::array();
  Json skipped = Json::array();
  for (const diagnose::AttentionCheck& check : checks) {
    if (!check.ran()) {
      skipped.push(Json::object().set("id", check.id).set("reason", check.skipped));
      continue;
    }
    ran.push(Json::object()
                 .set("id", check.id)
                 .set("ok", check.ok())
                 .set("difference", check.difference)
                 .set("bound", check.bound)
                 .set("bound_reason", check.reason)
                 .set("cause", check.cause)
                 .set("what", check.what));
  }
  return Json::object()
      .set("verdict", fault ? "fault" : "healthy")
      .set("checks", ran)
      .set("checks_skipped", skipped);
}

void print(const diagnose::AttentionCheck& check) {
  if (!check.ran()) {
    fmt::print("{:24} not run: {}\n", check.id, check.skipped);
    return;
  }
  const std::string bound = check.bound == 0 ? "0" : fmt::format("{:.1e}", check.bound);
  fmt::print("{:24} {:9.3g} of {:8} {:6} {} ({})\n", check.id, check.difference, bound,
             check.ok() ? "ok" : "FAILED", check.compared, check.reason);
  if (check.ok()) return;
  fmt::print("{:24} {}{}{}\n", "", check.cause, check.cause.empty() ? "" : ": ", check.what);
}

void print(const std::vector<diagnose::AttentionCheck>& checks) {
  for (const diagnose::AttentionCheck& check : checks) print(check);
  std::set<std::string> causes;
  int64_t failed = 0;
  for (const diagnose::AttentionCheck& check : checks) {
    failed += check.failed() ? 1 : 0;
    if (check.failed() && !check.cause.empty()) causes.insert(check.cause);
  }
  if (failed == 0) {
    fmt::print("\nNothing is wrong.\n");
    return;
  }
  fmt::print("\n{} of {} checks failed.\n", failed, checks.size());
  for (const std::string& cause : causes)
    fmt::print("{}; see faultline explain {}\n", cause, cause);
}

// Where a fault shows that no check shows.
std::string elsewhere(const lab::Variant& fault) {
  if (fault.has_training_form()) return fault.training_command();
  if (fault.has_generation_form()) return fault.generation_command();
  return "faultline lab " + fault.full_name();
}

// The faults of --fault in one Context, as long as this lives.
class Planted {
 public:
  Planted(const std::vector<std::string>& names, Context& context) {
    for (const std::string& name : names) {
      const lab::Variant& variant = catalogue_.find(name);
      guards_.push_back(variant.plant(context));
      variants_.push_back(&variant);
    }
  }

  // A line about each.
  std::string lines() const {
    std::string lines;
    for (const lab::Variant* variant : variants_) {
      lines += fmt::format("planted: {}\n", variant->full_name());
    }
    return lines;
  }

  // Throws where something was planted, for use when no check failed: a healthy verdict would be
  // about the checks and not about the model.
  void check_shown() const {
    if (variants_.empty()) return;
    fail("check-attention: no check shows {} in this model; `{}` does", variants_[0]->full_name(),
         elsewhere(*variants_[0]));
  }

 private:
  lab::Catalogue catalogue_;
  std::vector<std::shared_ptr<void>> guards_;
  std::vector<const lab::Variant*> variants_;
};

int check_model(const CheckOptions& options, Context& context) {
  nn::AttentionPolicy policy;
  std::shared_ptr<void> replaced;
  train::check_is_model(options.directory);
  if (!is_hf_folder(options.directory)) {
    const train::Config config = train::read_record(options.directory).config.build();
    replaced = config.apply_attention_policy();
    policy = nn::attention_policy_from_name(config.attention);
  }
  // After the run's policy, which a fault may replace, and before the adapters are made.
  const Planted planted(options.faults, context);
  const train::ModelDirectory source = train::open_model(options.directory, options.adapters);
  print_notes(source.notes);
  const auto checks = diagnose::check_attention(*source.model, policy);
  const bool fault = std::any_of(checks.begin(), checks.end(),
                                 [](const diagnose::AttentionCheck& c) { return c.failed(); });
  if (!fault) planted.check_shown();
  if (options.json != "-") {
    fmt::print("{}", planted.lines());
    print(checks);
  }
  write_json(options.json, json_of(checks, fault));
  return fault ? 1 : 0;
}

int check_attention(const CheckOptions& options) {
  const int asked = (options.directory.empty() ? 0 : 1) + (options.emit.empty() ? 0 : 1) +
                    (options.judge.empty() ? 0 : 1);
  require(asked == 1, "check-attention: give one of DIR, --emit FILE and --judge FILE");
  require(options.directory.empty() ? options.faults.empty() && options.adapters.empty() : true,
          "check-attention: --fault and --adapter are for a model; name its directory");
  require(
      options.emit.empty() ? !options.has_dtype : true,
      "check-attention: --dtype is of the probes that --emit writes; leave it out, or add --emit");
  require(options.threads >= 0 && options.threads <= 4096,
          "check-attention: --threads must be in [1, 4096], got {}", options.threads);
  Context context({.threads = static_cast<int>(options.threads)});
  const ContextGuard guard(context);
  if (!options.directory.empty()) return check_model(options, context);
  if (!options.judge.empty()) return judge(options);
  emit(options);
  return 0;
}

}  // namespace

void add_check_attention(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("check-attention", kHelp);
  auto options = std::make_shared<CheckOptions>();
  command->add_option("DIR", options->directory, "A run, or a Hugging Face folder");
  command
      ->add_option("--adapter", options->adapters,
                   "A directory with a PEFT adapter for the model; repeated, they add up")
      ->allow_extra_args(false);
  command
      ->add_option("--fault", options->faults,
                   "ID[:VARIANT] of a fault to plant while the checks run, may be repeated")
      ->allow_extra_args(false);
  command->add_option("--threads", options->threads, "OpenMP threads; never change a number")
      ->check(whole_number<int64_t>());
  command->add_option("--emit", options->emit, "Write the probes to a safetensors file");
  command->add_option("--judge", options->judge, "Judge the answers in a safetensors file");
  const CLI::Option* dtype = command->add_option(
      "--dtype", options->dtype, "Of the probes of --emit: f32 (default), f16 or bf16");
  command->add_option("--json", options->json, "Write the verdict as JSON to a file, - for stdout");
  command->callback([options, dtype, &exit_code] {
    options->has_dtype = dtype->count() > 0;
    exit_code = check_attention(*options);
  });
}

}  // namespace faultline::cli
