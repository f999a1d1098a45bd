#pragma once

#include <fmt/ranges.h>

#include <cstdio>
#include <string>
#include <vector>

namespace faultline::cli {

// Tells the user which keys of an adapter's configuration nobody here knows.
inline void note_ignored(const std::vector<std::string>& keys) {
  if (keys.empty()) return;
  fmt::print(stderr, "note: adapter_config.json has keys that are not known here: {}\n",
             fmt::join(keys, ", "));
}

}  // namespace faultline::cli
