#pragma once

#include <string_view>

namespace faultline::cli {

// Columns of the terminal on standard output; 0 where that is none.
int terminal_columns();

// Writes to standard output at once. A reader that went away or a full disk is no error: what is
// written so is for whoever looks, and the run goes on without them.
void show(std::string_view text);

// Writes to standard output at once what was asked for; throws IoError where it cannot.
void print_at_once(std::string_view text);

}  // namespace faultline::cli
