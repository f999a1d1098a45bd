#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/type_key.h"

namespace faultline {

// Off only in the build that bench/event_cost.py compares with.
#ifdef FAULTLINE_NO_EVENTS
constexpr bool kEvents = false;
#else
constexpr bool kEvents = true;
#endif

// Observers of one Context. An event is any struct; a room declares its own. Observers get a const
// reference and run on the emitting thread. With nobody subscribed, emitting is one comparison.
class EventBus {
 public:
  // Ends the subscription when destroyed.
  using Subscription = std::shared_ptr<void>;

  template <class E>
  [[nodiscard]] Subscription subscribe(std::function<void(const E&)> handler) {
    auto entry = std::make_shared<Entry>(
        Entry{type_key<E>(), [handler = std::move(handler)](const void* event) {
                handler(*static_cast<const E*>(event));
              }});
    entries_.push_back(entry);
    return entry;
  }

  // Whether emitting an E would reach anybody: ask before building an expensive event.
  template <class E>
  bool wanted() const {
    if (!kEvents) return false;
    for (const auto& entry : entries_) {
      if (const auto alive = entry.lock(); alive && alive->key == type_key<E>()) return true;
    }
    return false;
  }

  template <class E>
  void emit(const E& event) const {
    if (!kEvents || entries_.empty()) return;
    emit_to(type_key<E>(), &event);
  }

 private:
  struct Entry {
    const void* key;
    std::function<void(const void*)> handler;
  };
  void emit_to(const void* key, const void* event) const;

  mutable std::vector<std::weak_ptr<Entry>> entries_;
  mutable int emitting_ = 0;  // emissions under way: handlers may emit
};

}  // namespace faultline
