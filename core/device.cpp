#include "core/device.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace faultline {
namespace {

class CpuDevice final : public DeviceRuntime {
 public:
  std::string name() const override { return "cpu"; }

  std::byte* allocate(size_t bytes) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* data = std::aligned_alloc(64, rounded);
    if (data == nullptr) {
      throw Error(
          fmt::format("memory: the system has no {} bytes left; use a smaller batch, "
                      "sequence or model",
                      bytes));
    }
    return static_cast<std::byte*>(data);
  }
  void deallocate(std::byte* data, size_t) noexcept override { std::free(data); }

  void submit(const Stream&, const Launch& launch) override { launch.kernel->run(launch.args); }

  uint64_t record_event(const Stream&) override { return 0; }
  void wait_event(const Stream&, uint64_t) override {}
  void synchronize(const Stream&) override {}
  void copy_to_host(void* host, const std::byte* device, size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
  }
  void copy_from_host(std::byte* device, const void* host, size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
  }
};

}  // namespace

DeviceRuntime& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace faultline
