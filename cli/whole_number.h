#pragma once

#include <CLI/App.hpp>
#include <charconv>
#include <string>

namespace faultline::cli {

// A check for options that take a T. The parser itself takes -1 for 2^64 - 1, and the largest T for
// a number that is too large.
template <class T>
CLI::Validator whole_number() {
  return {[](const std::string& text) -> std::string {
            T value{};
            const char* end = text.data() + text.size();
            const auto result = std::from_chars(text.data(), end, value);
            if (result.ec == std::errc{} && result.ptr == end) return "";
            return "'" + text + "' is not a whole number in its range";
          },
          ""};
}

}  // namespace faultline::cli
