#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "lab/console.h"

namespace faultline::cli {
namespace {

// Columns of the terminal, within what reads well.
int text_width() {
  const int columns = terminal_columns();
  return columns == 0 ? 80 : std::clamp(columns, 40, 100);
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  struct Request {
    std::string id;
    std::string json;
  };
  CLI::App* command = app.add_subcommand(
      "explain",
      "Explain a fault: what happens, what one sees, what is claimed and true, and the fix.\n"
      "Example: faultline explain adamw.step-counter");
  auto request = std::make_shared<Request>();
  command->add_option("id", request->id, "ID of a fault; faultline lab --list shows them")
      ->required();
  command->add_option("--json", request->json, "Write it to a file, - for standard output");
  command->callback([request, &exit_code] {
    const lab::Catalogue catalogue;
    const lab::Fault& fault = catalogue.fault_of(request->id);
    if (request->json.empty()) std::cout << lab::explain_text(fault, text_width());
    write_json(request->json, lab::explain_json(fault));
    exit_code = 0;
  });
}

}  // namespace faultline::cli
