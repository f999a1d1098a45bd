#include "example.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "diagnose/verdict.h"
#include "io/atomic_file.h"
#include "lab/console.h"
#include "lab/run_case.h"

using namespace faultline;

namespace {

constexpr fmt::string_view kHelp =
    "  --fault ID[:VARIANT][@step=N]  plant a fault, or mystery:SEED; may be repeated\n"
    "  --watch off|light|full|deep    what the detectors see (default full)\n"
    "  --steps N                      training steps (default {})\n"
    "  --out DIR                      metrics.jsonl, verdict.json and faults.json go there\n"
    "  --seed N                       of initialisation and data (default 1)\n"
    "`faultline lab --list` names the faults.\n"
    "Example: {} --fault optim.missing-zero-grad --out run\n";

template <class T>
T whole_number(const std::string& flag, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  require(result.ec == std::errc{} && result.ptr == end && value >= 0,
          "{}: expected a whole number that is not negative, got '{}'", flag, text);
  return value;
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
    if (flag == "--fault") flags.faults.push_back(value);
    if (flag == "--watch") flags.watch = diagnose::watch_level_from_name(value);
    if (flag == "--steps") flags.steps = whole_number<int64_t>(flag, value);
    if (flag == "--out") flags.out = value;
    if (flag == "--seed") flags.seed = whole_number<uint64_t>(flag, value);
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
  for (const std::string& line : faults.apply_needs(config)) {
    require(options.config.has_value(),
            "--fault: {}; this program has no such setting, `faultline train tiny` has", line);
    fmt::print("{}\n", line);
  }
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
  faults_.check_onsets(context_, steps_);
  if (!out_.empty()) {
    require(!std::filesystem::exists(out_), "--out: '{}' is there already; name a new directory",
            out_);
    metrics_.emplace(out_ + "/metrics.jsonl");
    if (!faults_.empty()) write_file_atomically(out_ + "/faults.json", faults_.to_json(""));
  }
  for (const std::string& line : faults_.lines()) fmt::print("{}\n", line);
  faults_.plant(context_, 1);
}

bool Example::next_step() {
  context_.step = -1;
  if (step_ == steps_) return false;
  context_.step = ++step_;
  faults_.plant(context_, step_);
  return true;
}

void Example::log(const train::StepResult& result) {
  if (metrics_) {
    metrics_->write(Json::object()
                        .set("step", result.step)
                        .set("loss", result.loss)
                        .set("lr", result.lr)
                        .set("grad_norm", result.grad_norm)
                        .set("tokens", result.tokens));
  }
  if (result.step % std::max<int64_t>(1, steps_ / 10) != 0) return;
  fmt::print("step {:4}  loss {:.4f}\n", result.step, result.loss);
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
    fmt::print("{}", lab::case_text(result));
    require(result.verified(), "{}: {}", name, result.why);
  }
}

void Example::conclude() {
  if (watch_.level() == diagnose::WatchLevel::off) return;
  fmt::print("{}", diagnose::verdict_text(watch_));
  if (!out_.empty()) diagnose::write_verdict(out_, watch_);
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
    body(example);
    example.conclude();
    return 0;
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    fmt::print(stderr, "{}: {}\n", program, line);
    return 2;
  }
}
