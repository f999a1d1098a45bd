#include "core/device.h"

#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace faultline {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{1} << 21;

std::align_val_t alignment_of(size_t bytes) {
  return std::align_val_t{bytes >= kHugePage ? kHugePage : kLine};
}

// Whole huge pages inside of a large block: the products read it with far fewer misses of the
// address cache. Where the system has none, nothing changes.
void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  if (bytes >= kHugePage) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

class CpuDevice final : public DeviceRuntime {
 public:
  std::string name() const override { return "cpu"; }

  std::byte* allocate(size_t bytes) override {
    void* data = ::operator new(bytes, alignment_of(bytes), std::nothrow);
    if (data == nullptr) {
      throw Error(
          fmt::format("memory: the system has no {} bytes left; use a smaller batch, "
                      "sequence or model",
                      bytes));
    }
    ask_for_huge_pages(data, bytes);
    return static_cast<std::byte*>(data);
  }
  void deallocate(std::byte* data, size_t bytes) noexcept override {
    ::operator delete(data, alignment_of(bytes));
  }

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
