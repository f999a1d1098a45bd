#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/site.h"

namespace faultline {

class Allocator;

// Who asked for a block.
struct AllocationTag {
  const char* op = "";
  const char* module = "";
  int64_t step = -1;  // -1 outside a training step
  Site site;
};

// A piece of device memory, shared by the tensors that view it.
struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;     // asked for
  size_t capacity = 0;  // held
  std::atomic<int32_t> references{0};
  // Counts writes after creation; a tape compares it to find in-place changes of saved tensors.
  std::atomic<uint32_t> version{0};
  const char* last_writer = "";  // the op of the last in-place write
  int stream = 0;
  size_t place = 0;  // among the allocator's live blocks
  AllocationTag tag;
  DeviceRuntime* device = nullptr;
  std::shared_ptr<Allocator> owner;        // empty for memory that something else owns
  std::shared_ptr<const void> keep_alive;  // that something else
};

struct MemoryStats {
  int64_t live_bytes = 0;  // asked for and not released
  int64_t peak_bytes = 0;
  int64_t live_blocks = 0;
  int64_t cached_bytes = 0;        // held for reuse
  int64_t allocations = 0;         // requests so far
  int64_t device_allocations = 0;  // requests that went to the device
};

struct LiveBlock {
  const std::byte* data;
  size_t bytes;
  AllocationTag tag;
};

struct AllocatorOptions {
  // Fresh memory holds 0xff bytes: NaN in every floating type, so that a read before the first
  // write shows.
  bool nan_fill = false;
  // A guard before and after every block, checked at release and by check_canaries().
  bool canaries = false;
};

// Caches released blocks by size class and hands them out again, so that a steady training step
// asks the device for nothing. Thread-safe: a tensor may be freed on any thread.
class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  // Shared, because every block keeps its allocator alive.
  static std::shared_ptr<Allocator> create(DeviceRuntime& device, AllocatorOptions options = {});
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // A block of at least one byte aligned to 64, with references == 1. Throws Error when the device
  // has no memory left, also after the cache was given back to it.
  Block* allocate(size_t bytes, const Stream& stream, const AllocationTag& tag);

  // Called when the last reference is gone. The memory may be handed out on the same stream at
  // once.
  static void release(Block* block) noexcept;

  // Another stream uses the block: it is not reused before that stream has reached this point.
  void record_use(Block& block, const Stream& stream);

  // Throws Error naming the first block whose guard was overwritten, with the op that allocated it.
  void check_canaries() const;

  MemoryStats stats() const;
  // The blocks that are not released, in no order.
  std::vector<LiveBlock> live() const;
  // Gives cached memory back to the device.
  void trim();
  DeviceRuntime& device() const { return device_; }

 private:
  Allocator(DeviceRuntime& device, AllocatorOptions options);
  std::byte* device_memory(size_t bytes);
  struct State;

  DeviceRuntime& device_;
  AllocatorOptions options_;
  std::unique_ptr<State> state_;
};

// A block over memory that `keep_alive` owns, for example a mapped file.
Block* adopt(std::byte* data, size_t bytes, DeviceRuntime& device,
             std::shared_ptr<const void> keep_alive);

}  // namespace faultline
