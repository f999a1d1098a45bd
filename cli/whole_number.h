#pragma once

#include "core/whole_number.h"

#include <CLI/App.hpp>
#include <string>

namespace faultline::cli {

// A check for options that take a T. The parser itself takes -1 for 2^64 - 1, and the largest T for
// a number that is too large.
template <class T>
CLI::Validator whole_number() {
  return {[](const std::string& text) -> std::string {
            if (faultline::whole_number<T>(text)) return "";
            return "'" + text + "' is not a whole number in its range";
          },
          ""};
}

}  // namespace faultline::cli
