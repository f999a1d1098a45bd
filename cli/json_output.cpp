#include "cli/json_output.h"

#include <iostream>

#include "io/atomic_file.h"

namespace faultline::cli {

void write_json(const std::string& path, const Json& answer) {
  if (path.empty()) return;
  if (path == "-") {
    std::cout << answer.to_indented_text();
  } else {
    write_file_atomically(path, answer.to_indented_text());
  }
}

}  // namespace faultline::cli
