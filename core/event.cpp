#include "core/event.h"

namespace faultline {

void EventBus::emit_to(const void* key, const void* event) const {
  bool expired = false;
  // By index: a handler may subscribe another one.
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (const auto entry = entries_[i].lock()) {
      if (entry->key == key) entry->handler(event);
    } else {
      expired = true;
    }
  }
  if (expired) std::erase_if(entries_, [](const auto& entry) { return entry.expired(); });
}

}  // namespace faultline
