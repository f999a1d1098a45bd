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

// A name that is more than a fault's id is that of a variant.
std::string text_of(const lab::Catalogue& catalogue, const std::string& name) {
  const lab::Fault& fault = catalogue.fault_of(name);
  if (name == fault.text().id) return lab::explain_text(fault, text_width());
  return lab::explain_text({&fault, &catalogue.find(name)}, text_width());
}

Json json_of(const lab::Catalogue& catalogue, const std::string& name) {
  const lab::Fault& fault = catalogue.fault_of(name);
  if (name == fault.text().id) return lab::explain_json(fault);
  return lab::explain_json({&fault, &catalogue.find(name)});
}

Json all_faults(const lab::Catalogue& catalogue) {
  Json list = Json::array();
  for (const lab::Fault& fault : catalogue.faults()) list.push(lab::explain_json(fault));
  return list;
}

void explain(const std::string& name, const std::string& json) {
  const lab::Catalogue catalogue;
  const bool all = name.empty();
  if (json.empty()) {
    std::cout << (all ? lab::faults_text(catalogue, text_width()) : text_of(catalogue, name));
  } else {
    write_json(json, all ? all_faults(catalogue) : json_of(catalogue, name));
  }
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  struct Request {
    std::string name;
    std::string json;
  };
  CLI::App* command = app.add_subcommand(
      "explain",
      "Explain a fault: what one sees, what happens, who catches it, what looks alike, the fix,\n"
      "what is claimed and what is true. Without an ID it lists the faults.\n"
      "Example: faultline explain adamw.step-counter\n"
      "Example: faultline explain attn.mask-broadcast:inverted");
  auto request = std::make_shared<Request>();
  command->add_option("id", request->name, "ID or ID:VARIANT of a fault; all faults without one");
  command->add_option("--json", request->json,
                      "Write all that is known of the fault to a file, - for standard output");
  command->callback([request, &exit_code] {
    explain(request->name, request->json);
    exit_code = 0;
  });
}

}  // namespace faultline::cli
