#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "core/error.h"
#include "train/config.h"
#include "version.h"

namespace faultline::cli {
namespace {

constexpr const char* kAbout =
    "Faultline: a training framework that is right, and a lab for what goes wrong.\n"
    "Example: faultline lab adamw.step-counter\n"
    "Example: faultline train char --out run && faultline generate run --prompt \"In the \"";

// Flags that the contract names and this version does not have yet.
constexpr const char* kLaterFlags[] = {"--amp",      "--plan",   "--checkpoint-activations",
                                       "--ranks",    "--zero",   "--reduce",
                                       "--deadline", "--backend"};
constexpr const char* kLaterCommands[] = {"diagnose", "compare", "doctor"};

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// Without those that --help does not show.
std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

template <size_t N>
bool among(const std::string& name, const char* const (&list)[N]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// The first word that is not a flag must be a command; the parser would only say "not expected".
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2) fail("say what to do: faultline COMMAND; faultline --help lists the commands");
  const std::string word = argv[1];
  if (word.starts_with("-")) {
    const std::vector<std::string> flags = flag_names(app);
    const bool known = word == "-h" || std::find(flags.begin(), flags.end(), word) != flags.end();
    require(known, "there is no flag {} before the command; {}", word,
            train::suggestion(word, flags));
    return;
  }
  const std::vector<std::string> names = command_names(app);
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  require(!among(word, kLaterCommands), "the command {} comes with a later version", word);
  fail("there is no command '{}'; {}", word, train::suggestion(word, names));
}

// The advice for arguments that no command line of ours has.
std::string unexpected(const CLI::App& command, const std::vector<std::string>& extras) {
  const std::string word = extras.front().substr(0, extras.front().find('='));
  if (!word.starts_with("-")) return fmt::format("'{}' is one argument too many", word);
  if (among(word, kLaterFlags)) return fmt::format("{} comes with a later version", word);
  const std::string listing = fmt::format("faultline {} --help lists them", command.get_name());
  return fmt::format("there is no flag {}; {}", word,
                     train::suggestion(word, flag_names(command), listing));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A flag without a value, or one given too often; the parser's text begins with its name.
std::string wrong_count(const std::string& text) {
  const std::string flag = text.substr(0, text.find(':'));
  const bool often = text.find("but received") != std::string::npos;
  return flag + (often ? " is given more than once; give it once" : " needs a value behind it");
}

// A parser's error as one line of ours.
std::string advice(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string name = chosen.empty() ? "" : command.get_name() + ": ";
  const std::vector<std::string> extras = command.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extras.empty()) {
    return name + unexpected(command, extras);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return name + wrong_count(error.what());
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr std::string_view kConversion = "Could not convert: ";
  if (text.starts_with(kConversion)) {
    text = replaced(text.substr(kConversion.size()), " = ", " cannot be '") + "'";
  }
  return fmt::format("{}{}; see faultline {}--help", name, text,
                     chosen.empty() ? "" : command.get_name() + " ");
}

// A file that we open must not get the number of a standard stream that was closed, or what is
// printed ends up in it. Opened so that printing is an error, as it is on a closed stream.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDONLY) != stream) {
      throw IoError("a standard stream is closed, and /dev/null cannot stand in for it");
    }
  }
}

int run(int argc, char** argv) {
  occupy_closed_streams();
  CLI::App app(kAbout, "faultline");
  app.set_version_flag("--version", std::string("faultline ") + version);
  app.require_subcommand(1);
  int exit_code = 0;
  add_lab(app, exit_code);
  add_explain(app, exit_code);
  add_train(app, exit_code);
  add_reveal(app, exit_code);
  add_generate(app, exit_code);
  add_convert(app, exit_code);
  add_merge(app, exit_code);
  add_logits(app, exit_code);
  add_tokenize(app, exit_code);
  add_bench(app, exit_code);
  add_check_attention(app, exit_code);
  check_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fail("{}", advice(app, error));
  }
  std::cout.flush();
  require(std::cout.good(),
          "standard output cannot be written; was it closed, or is the disk full?");
  return exit_code;
}

}  // namespace
}  // namespace faultline::cli

int main(int argc, char** argv) {
  const auto refuse = [](const std::string& text) {
    std::string line = text;
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::fprintf(stderr, "faultline: %s\n", line.c_str());
    return 2;
  };
  try {
    return faultline::cli::run(argc, argv);
  } catch (const faultline::cli::Interrupted& stopped) {
    refuse("interrupted; nothing was written");
    faultline::cli::end_process(stopped.signal);
    return 2;
  } catch (const faultline::InternalError& error) {
    return refuse(std::string("this is a bug of Faultline, please report it: ") + error.what());
  } catch (const std::bad_alloc&) {
    return refuse("out of memory; use a smaller model, batch_size or seq_len");
  } catch (const std::length_error&) {
    return refuse("out of memory; use a smaller model, batch_size or seq_len");
  } catch (const faultline::Error& error) {
    return refuse(error.what());
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
