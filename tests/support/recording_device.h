#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/device.h"

namespace faultline::test {

// A second device: it has memory, and writes launches down instead of running them.
class RecordingDevice final : public DeviceRuntime {
 public:
  std::string name() const override { return "recording"; }
  std::byte* allocate(size_t bytes) override {
    if (bytes > capacity - held) throw Error("recording device: full");
    held += bytes;
    return cpu_device().allocate(bytes);
  }
  void deallocate(std::byte* data, size_t bytes) noexcept override {
    held -= bytes;
    cpu_device().deallocate(data, bytes);
  }
  void submit(const Stream&, const Launch& launch) override {
    kernels.emplace_back(launch.kernel->name);
    ops.emplace_back(launch.label.op);
    flops += launch.flops;
  }
  uint64_t record_event(const Stream& stream) override {
    events_recorded.push_back(stream.id);
    return events_recorded.size();
  }
  void wait_event(const Stream& stream, uint64_t) override { events_awaited.push_back(stream.id); }
  void synchronize(const Stream&) override {}
  void copy_to_host(void* host, const std::byte*, size_t bytes) override {
    std::memset(host, 0, bytes);  // nothing was computed
  }
  void copy_from_host(std::byte*, const void*, size_t) override {}

  size_t capacity = SIZE_MAX;  // bytes
  size_t held = 0;
  std::vector<std::string> kernels;
  std::vector<std::string> ops;
  double flops = 0;
  std::vector<int> events_recorded;
  std::vector<int> events_awaited;
};

}  // namespace faultline::test
