#include "core/context.h"

#include "core/device.h"
#include "core/threads.h"

namespace faultline {
namespace {
thread_local Context* current_context = nullptr;
}

Context::Context(ContextOptions options)
    : threads(options.threads > 0 ? options.threads : default_threads()), seed(options.seed) {
  DeviceRuntime& device = options.device != nullptr ? *options.device : cpu_device();
  stream.device = &device;
  allocator = Allocator::create(device, options.allocator);
}

Context& Context::current() {
  require(current_context != nullptr,
          "context: this thread has none; write `Context context; ContextGuard guard(context);` "
          "first");
  return *current_context;
}

ContextGuard::ContextGuard(Context& context) : previous_(current_context) {
  current_context = &context;
}

ContextGuard::~ContextGuard() { current_context = previous_; }

}  // namespace faultline
