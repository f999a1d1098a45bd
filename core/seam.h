#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/type_key.h"

namespace faultline {

// A seam is a named place where the framework asks for a behaviour that somebody may replace:
// tests, experiments, and the lab's faults. It is a struct, declared in the room that asks:
//
//   struct LabelSeam {
//     static constexpr const char* name = "labels";
//     using Signature = Tensor(const Tensor& tokens);
//     static Tensor standard(const Tensor& tokens);   // the right behaviour
//   };
//
//   Tensor labels = context.seams.call<LabelSeam>(tokens);
//
// Replacements are scoped and belong to one Context, so two ranks can run side by side with
// different ones. A replacement may call S::standard itself.
class SeamTable {
 public:
  // Calls the replacement of S if there is one, else S::standard.
  template <class S, class... Args>
  decltype(auto) call(Args&&... args) const {
    if (!entries_.empty()) [[unlikely]] {
      // Held for the call: a replacement may end itself.
      if (const std::shared_ptr<const void> replacement = find(type_key<S>())) {
        return (*static_cast<const std::function<typename S::Signature>*>(replacement.get()))(
            std::forward<Args>(args)...);
      }
    }
    return S::standard(std::forward<Args>(args)...);
  }

  // Replaces S until the guard is destroyed. Replacements nest: the latest one counts.
  template <class S>
  [[nodiscard]] std::shared_ptr<void> replace(std::function<typename S::Signature> behaviour) {
    auto held = std::make_shared<std::function<typename S::Signature>>(std::move(behaviour));
    entries_.push_back({type_key<S>(), S::name, held});
    return held;
  }

  // Names of the seams that are replaced now, for reports.
  std::vector<const char*> replaced() const;
  // Those of the replacements that were never called: nothing asked for them yet.
  std::vector<const char*> unasked() const;

 private:
  struct Entry {
    const void* key;
    const char* name;
    std::weak_ptr<void> behaviour;
    bool asked = false;
  };
  // The latest living replacement; forgets dead ones.
  std::shared_ptr<const void> find(const void* key) const;

  mutable std::vector<Entry> entries_;
};

}  // namespace faultline
