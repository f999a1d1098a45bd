#include "core/seam.h"

namespace faultline {

std::shared_ptr<const void> SeamTable::find(const void* key) const {
  std::erase_if(entries_, [](const Entry& entry) { return entry.behaviour.expired(); });
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->key != key) continue;
    entry->asked = true;
    return entry->behaviour.lock();
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

std::vector<const char*> SeamTable::unasked() const {
  std::vector<const char*> names;
  for (const Entry& entry : entries_) {
    if (!entry.behaviour.expired() && !entry.asked) names.push_back(entry.name);
  }
  return names;
}

}  // namespace faultline
