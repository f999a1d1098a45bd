#pragma once

#include <fmt/core.h>

#include <concepts>
#include <stdexcept>
#include <string>
#include <utility>

namespace faultline {

// Base of everything this library throws. Library code never aborts, exits or prints.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The caller's input cannot be used. The text names the operation, what was expected, what was
// received and what to do. The command line prints it as one line and exits 2.
class InvalidArgument : public Error {
  using Error::Error;
};

// A file or directory cannot be read or written.
class IoError : public Error {
  using Error::Error;
};

// Faultline itself is wrong. Seeing one is a bug report.
class InternalError : public Error {
  using Error::Error;
};

// Throws InvalidArgument with a formatted text.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument(fmt::format(text, std::forward<Args>(args)...));
}

// Throws InvalidArgument unless `condition` holds. Only a bool is a condition, so that a string
// literal cannot be one by mistake.
template <class... Args>
void require(std::same_as<bool> auto condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw InvalidArgument(fmt::format(text, std::forward<Args>(args)...));
  }
}

// Throws InternalError unless `condition` holds.
template <class... Args>
void invariant(std::same_as<bool> auto condition, fmt::format_string<Args...> text,
               Args&&... args) {
  if (!condition) [[unlikely]] {
    throw InternalError(fmt::format(text, std::forward<Args>(args)...));
  }
}

}  // namespace faultline
