#include "core/intern.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace faultline {

const char* intern(std::string_view text) {
  // Never destroyed: names are read during the destruction of other static objects too.
  static auto& names = *new std::unordered_set<std::string>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return names.emplace(text).first->c_str();
}

}  // namespace faultline
