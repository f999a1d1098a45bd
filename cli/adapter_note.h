#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <vector>

namespace faultline::cli {

// Shows the user what was found out about an adapter.
inline void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

}  // namespace faultline::cli
