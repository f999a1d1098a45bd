#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/allocator.h"
#include "core/event.h"
#include "core/seam.h"

namespace faultline {

struct ContextOptions {
  DeviceRuntime* device = nullptr;  // default: the CPU
  int threads = 0;                  // OpenMP threads for kernels; 0: as many as OpenMP would use
  uint64_t seed = 1;
  AllocatorOptions allocator;
};

// Everything that one run needs and one thread owns. A rank is a thread with its own Context; two
// ranks, two cases or two tests run side by side with one each. OpenMP workers and communication,
// loader and checkpoint threads never read it.
class Context {
 public:
  explicit Context(ContextOptions options = {});
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The Context that this thread has entered. Throws InvalidArgument when there is none.
  static Context& current();

  SeamTable seams;
  EventBus events;
  std::shared_ptr<Allocator> allocator;
  Stream stream;
  LaunchRecorder* recorder = nullptr;  // not owned

  int threads = 1;
  uint64_t seed = 1;
  int64_t step = -1;        // the training step that runs now, from 1; -1 outside of one
  const char* module = "";  // full name of the module that runs now (interned)
  Phase phase = Phase::forward;
  bool gradients = true;          // whether ops go on the tape
  std::optional<DType> autocast;  // the lower precision while autocast is on
  uint64_t next_sequence = 1;     // orders tape nodes
};

// Makes a Context the current one of this thread until the guard is destroyed. Guards nest.
class [[nodiscard]] ContextGuard {
 public:
  explicit ContextGuard(Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context* previous_;
};

// Sets a variable and sets it back: `Scoped<bool> off(context.gradients, false);`
template <class T>
class [[nodiscard]] Scoped {
 public:
  Scoped(T& variable, T value) : variable_(variable), previous_(variable) { variable = value; }
  ~Scoped() { variable_ = previous_; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  T& variable_;
  T previous_;
};

// No op goes on the tape while this lives.
class [[nodiscard]] NoGrad {
 public:
  NoGrad() : off_(Context::current().gradients, false) {}

 private:
  Scoped<bool> off_;
};

}  // namespace faultline
