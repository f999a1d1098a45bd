#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/launch.h"

namespace faultline {

// What the rest of the framework needs of a device. `cpu_device()` runs a launch at once; a
// simulated device may schedule and check it, a GPU enqueues it.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual std::string name() const = 0;

  // Raw memory, aligned to 64 bytes. Throws Error when there is none. The caching allocator is the
  // only caller.
  virtual std::byte* allocate(size_t bytes) = 0;
  // `bytes` as they were asked for.
  virtual void deallocate(std::byte* data, size_t bytes) noexcept = 0;

  // Runs the launch after what the stream was given before: at once, or later.
  virtual void submit(const Stream& stream, const Launch& launch) = 0;

  // An event marks a point of a stream; waiting makes the other stream continue after it.
  virtual uint64_t record_event(const Stream& stream) = 0;
  virtual void wait_event(const Stream& stream, uint64_t event) = 0;
  // Returns when everything submitted to the stream is done.
  virtual void synchronize(const Stream& stream) = 0;

  // Explicit synchronisation points: return when the bytes are there.
  virtual void copy_to_host(void* host, const std::byte* device, size_t bytes) = 0;
  virtual void copy_from_host(std::byte* device, const void* host, size_t bytes) = 0;
};

// The CPU: one stream, in order, every launch runs before submit returns.
DeviceRuntime& cpu_device();

}  // namespace faultline
