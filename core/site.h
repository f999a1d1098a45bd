#pragma once

namespace faultline {

// Where a call was written: the default argument `Site site = Site::here()` gives the caller's file
// and line (clang 14 has no std::source_location).
struct Site {
  const char* file = "";
  int line = 0;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace faultline
