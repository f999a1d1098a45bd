#pragma once

#include <string>

#include "io/json.h"

namespace faultline::cli {

// Writes an answer to the file named by --json; "-" is standard output, "" is nowhere.
void write_json(const std::string& path, const Json& answer);

}  // namespace faultline::cli
