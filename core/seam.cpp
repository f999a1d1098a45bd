#include "core/seam.h"

namespace faultline {

const void* SeamTable::find(const void* key) const {
  std::erase_if(entries_, [](const Entry& entry) { return entry.behaviour.expired(); });
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    // The table is used by one thread only, so the guard cannot die between here and the call.
    if (entry->key == key) return entry->behaviour.lock().get();
  }
  return nullptr;
}

std::vector<const char*> SeamTable::replaced() const {
  std::vector<const char*> names;
  for (const Entry& entry : entries_) {
    if (!entry.behaviour.expired()) names.push_back(entry.name);
  }
  return names;
}

}  // namespace faultline
