#pragma once

#include <string_view>

namespace faultline {

// The one copy of a name that lives as long as the process, so that launches, blocks and events can
// carry a plain pointer. Thread-safe; equal texts give equal pointers.
const char* intern(std::string_view text);

}  // namespace faultline
