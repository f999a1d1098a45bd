#include "core/event.h"

namespace faultline {

void EventBus::emit_to(const void* key, const void* event) const {
  struct Emission {
    int& depth;
    explicit Emission(int& d) : depth(d) { ++depth; }
    ~Emission() { --depth; }
  };
  bool expired = false;
  {
    const Emission under_way(emitting_);
    // By index: a handler may subscribe another one.
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (const auto entry = entries_[i].lock()) {
        if (entry->key == key) entry->handler(event);
      } else {
        expired = true;
      }
    }
  }
  // Not under an outer emission, which still counts through the list.
  if (expired && emitting_ == 0)
    std::erase_if(entries_, [](const auto& entry) { return entry.expired(); });
}

}  // namespace faultline
