#pragma once

#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace faultline::cli {

// A check for options that take one of these words; the parser's own speaks of sets.
inline CLI::Validator one_of(std::vector<std::string> words) {
  return {[words = std::move(words)](const std::string& text) -> std::string {
            if (std::find(words.begin(), words.end(), text) != words.end()) return "";
            return fmt::format("'{}' is none of {}", text, fmt::join(words, ", "));
          },
          ""};
}

}  // namespace faultline::cli
