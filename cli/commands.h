#pragma once

#include <iosfwd>

#include <CLI/App.hpp>

// One file a command. Each adds its subcommand to the app with a callback that returns the exit
// code through `exit_code`: 0 done, 1 the thing asked about failed; errors are exceptions, which
// main prints as one line and exits 2.
namespace faultline::cli {

void add_lab(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);
void add_reveal(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_merge(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_check_attention(CLI::App& app, int& exit_code);

}  // namespace faultline::cli
