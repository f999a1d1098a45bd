#include "example.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "autograd/functional.h"
#include "core/rng.h"
#include "core/whole_number.h"
#include "diagnose/verdict.h"
#include "io/atomic_file.h"
#include "lab/console.h"
#include "lab/run_case.h"
#include "train/loss_text.h"

using namespace faultline;

namespace {

constexpr fmt::string_view kHelp =
    "  --fault ID[:VARIANT][@step=N]  plant a fault; may be repeated\n"
    "  --watch off|light|full|deep    what the detectors see (default full)\n"
    "  --steps N                      training steps (default {})\n"
    "  --out DIR                      metrics.jsonl, verdict.json and faults.json go there\n"
    "  --seed N                       of initialisation and data (default 1)\n"
    "`faultline lab --list` names the faults; one is refused where this program never asks its "
    "seam.\n"
    "Example: {} --fault optim.missing-zero-grad --out run\n";

template <class T>
T number_of(const std::string& flag, const std::string& text) {
  const auto value = whole_number<T>(text);
  require(value && *value >= 0, "{}: expected a whole number that is not negative, got '{}'", flag,
          text);
  return *value;
}

// A mystery is drawn from all faults, most of which are not in the code of one small program.
std::string fault_of(const std::string& text) {
  require(!text.starts_with("mystery"),
          "--fault {}: this program has no mysteries, `faultline train tiny` has", text);
  return text;
}

ExampleFlags read_flags(const std::vector<std::string>& arguments, int64_t steps) {
  const std::vector<std::string> names = {"--fault", "--watch", "--steps", "--out", "--seed"};
  ExampleFlags flags;
  flags.steps = steps;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string flag = arguments[i].substr(0, equals);
    require(std::find(names.begin(), names.end(), flag) != names.end(), "there is no flag '{}'; {}",
            flag, train::suggestion(flag, names));
    require(equals != std::string::npos || i + 1 < arguments.size(),
            "{}: its value is missing; --help shows what it takes", flag);
    const std::string value =
        equals != std::string::npos ? arguments[i].substr(equals + 1) : arguments[++i];
    if (flag == "--fault") flags.faults.push_back(fault_of(value));
    if (flag == "--watch") flags.watch = diagnose::watch_level_from_name(value);
    if (flag == "--steps") flags.steps = number_of<int64_t>(flag, value);
    if (flag == "--out") flags.out = value;
    if (flag == "--seed") flags.seed = number_of<uint64_t>(flag, value);
  }
  return flags;
}

// Ours and those of the program.
std::vector<diagnose::DetectorDefinition> detectors_of(const ExampleOptions& options) {
  std::vector<diagnose::DetectorDefinition> detectors = diagnose::all_detectors();
  detectors.insert(detectors.end(), options.detectors.begin(), options.detectors.end());
  return detectors;
}

// The program's configuration with what the faults need.
train::Config configure(const lab::PlannedFaults& faults, const ExampleOptions& options,
                        uint64_t seed) {
  train::ConfigBuilder config = options.config.value_or(train::ConfigBuilder::preset("tiny"));
  if (!options.config) faults.refuse_needs();
  for (const std::string& line : faults.apply_needs(config)) fmt::print("{}\n", line);
  config.set("seed", std::to_string(seed), "--seed");
  return config.build();
}

}  // namespace

Example::Example(const ExampleFlags& flags, const ExampleOptions& options)
    : options_(options),
      context_({.seed = flags.seed}),
      guard_(context_),
      faults_(flags.faults, lab::Catalogue(options.faults, detectors_of(options))),
      config_(configure(faults_, options, flags.seed)),
      watch_(context_, flags.watch, detectors_of(options)),
      out_(flags.out),
      steps_(flags.steps) {
  faults_.check_onsets(steps_);
  require(out_.empty() || !std::filesystem::exists(out_),
          "--out: '{}' is there already; name a new directory", out_);
  faults_.plant(context_, 1);
}

bool Example::next_step() {
  context_.step = -1;
  if (step_ == steps_) return false;
  context_.step = ++step_;
  faults_.plant(context_, step_);
  return true;
}

void Example::tell_what_is_planted() const {
  for (const std::string& line : faults_.lines()) fmt::print("{}\n", line);
  if (!out_.empty() && !faults_.empty()) {
    std::error_code none;  // writing says what is wrong
    std::filesystem::create_directories(out_, none);
    write_file_atomically(out_ + "/faults.json", faults_.to_json("", /*done=*/0));
  }
}

void Example::check_asked() {
  try {
    faults_.check_asked(context_, step_, options_.asked_later);
  } catch (const InvalidArgument&) {
    metrics_.reset();
    std::error_code none;
    if (!out_.empty()) std::filesystem::remove_all(out_, none);  // it was not there before
    out_.clear();
    throw;
  }
}

void Example::log(const train::StepResult& result) {
  check_asked();
  if (result.step == faults_.last_onset()) tell_what_is_planted();
  if (result.step == 1 && !out_.empty()) metrics_.emplace(out_ + "/metrics.jsonl");
  if (metrics_) {
    metrics_->write(Json::object()
                        .set("step", result.step)
                        .set("loss", result.loss)
                        .set("lr", result.lr)
                        .set("grad_norm", result.grad_norm)
                        .set("tokens", result.tokens));
  }
  if (result.step % std::max<int64_t>(1, steps_ / 10) != 0) return;
  fmt::print("step {:4}  loss {}\n", result.step, train::loss_text(result.loss));
}

void Example::end_step(double loss, double lr, int64_t tokens, double grad_norm) {
  context_.events.emit(train::StepEndEvent{step_, loss, grad_norm, lr, tokens});
  log({step_, loss, grad_norm, lr, tokens});
}

void Example::prove(const std::string& name) {
  const std::vector<diagnose::DetectorDefinition> detectors = detectors_of(options_);
  const lab::Catalogue catalogue(options_.faults, detectors);
  for (const lab::Catalogue::Entry& entry : catalogue.select({name})) {
    const lab::CaseResult result = lab::run_case(entry, {.seed = seed()}, detectors);
    std::string text = lab::case_text(result);
    // `faultline explain` knows the tree's faults, and this one is outside.
    const size_t explain = text.find("   faultline explain");
    if (explain != std::string::npos) text.replace(explain, std::string::npos, "\n");
    fmt::print("{}", text);
    require(result.verified(), "{}: {}", name, result.why);
  }
}

void Example::conclude() {
  if (steps_ == 0) tell_what_is_planted();
  if (watch_.level() == diagnose::WatchLevel::off) return;
  fmt::print("{}", diagnose::verdict_text(watch_));
  write_verdict();
}

void Example::give_up() {
  if (step_ == 0) return;
  try {
    write_verdict();
  } catch (const IoError&) {  // the first error says more
  }
}

void Example::write_verdict() const {
  const bool watched = watch_.level() != diagnose::WatchLevel::off;
  if (!watched || out_.empty()) return;
  std::error_code none;
  std::filesystem::create_directories(out_, none);
  diagnose::write_verdict(out_, watch_);
}

void draw_weights(nn::Module& module, double deviation, uint64_t seed) {
  const NoGrad off;
  for (Parameter* parameter : module.parameters()) {
    if (parameter->decay() == Decay::no) continue;
    const uint64_t stream = stream_of(parameter->name().c_str());
    copy_(parameter->value(), normal(parameter->value().shape(), 0, deviation, seed, stream));
  }
}

int run_example(int argc, char** argv, const ExampleOptions& options, void (*body)(Example&)) {
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    for (const std::string& argument : arguments) {
      if (argument != "--help" && argument != "-h") continue;
      fmt::print("{}\n", options.about);
      fmt::print(fmt::runtime(kHelp), options.steps, program);
      return 0;
    }
    Example example(read_flags(arguments, options.steps), options);
    try {
      body(example);
    } catch (const std::exception&) {
      example.give_up();
      throw;
    }
    example.conclude();
    return 0;
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    fmt::print(stderr, "{}: {}\n", program, line);
    return 2;
  }
}
