#include "core/allocator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace faultline {
namespace {

constexpr size_t kGuard = 64;
constexpr auto kGuardByte = std::byte{0xa5};

// Sizes are rounded to an eighth of their power of two (at least 64 bytes), so a cached block
// wastes at most an eighth.
size_t size_class(size_t bytes) {
  if (bytes <= 512) return std::max<size_t>(64, (bytes + 63) / 64 * 64);
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

bool guard_intact(const std::byte* guard) {
  return std::all_of(guard, guard + kGuard, [](std::byte b) { return b == kGuardByte; });
}

}  // namespace

struct Allocator::State {
  mutable std::mutex mutex;
  std::unordered_map<size_t, std::vector<Block*>> cache;  // by capacity
  std::vector<Block*> spare;                              // Block objects without memory
  std::vector<Block*> live;                               // each knows its place
  std::string broken_guard;  // the first overwritten guard seen at a release
  MemoryStats stats;
};

std::shared_ptr<Allocator> Allocator::create(DeviceRuntime& device, AllocatorOptions options) {
  return std::shared_ptr<Allocator>(new Allocator(device, options));
}

Allocator::Allocator(DeviceRuntime& device, AllocatorOptions options)
    : device_(device), options_(options), state_(std::make_unique<State>()) {}

Allocator::~Allocator() {
  trim();
  for (Block* block : state_->spare) delete block;
}

// The cache may hold what the device lacks, in blocks of other sizes.
std::byte* Allocator::device_memory(size_t bytes) {
  try {
    return device_.allocate(bytes);
  } catch (const Error&) {
    if (stats().cached_bytes == 0) throw;
  }
  trim();
  return device_.allocate(bytes);
}

Block* Allocator::allocate(size_t bytes, const Stream& stream, const AllocationTag& tag) {
  const size_t guards = options_.canaries ? 2 * kGuard : 0;
  const size_t capacity = size_class(bytes + guards);
  Block* block = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    auto& free_list = state_->cache[capacity];
    // A released block stays with its stream, which waits for the others that used it.
    const auto found = std::find_if(free_list.rbegin(), free_list.rend(),
                                    [&](const Block* b) { return b->stream == stream.id; });
    if (found != free_list.rend()) {
      block = *found;
      std::swap(*found, free_list.back());
      free_list.pop_back();
      state_->stats.cached_bytes -= static_cast<int64_t>(capacity);
    }
  }
  const bool fresh = block == nullptr;
  std::byte* memory = fresh ? device_memory(capacity) : block->data - guards / 2;

  const std::lock_guard lock(state_->mutex);
  if (fresh) {
    if (state_->spare.empty()) {
      block = new Block;
    } else {
      block = state_->spare.back();
      state_->spare.pop_back();
    }
    block->capacity = capacity;
    ++state_->stats.device_allocations;
  }
  block->data = memory + guards / 2;
  block->bytes = bytes;
  block->references.store(1, std::memory_order_relaxed);
  block->version.store(0, std::memory_order_relaxed);
  block->last_writer = "";
  block->stream = stream.id;
  block->tag = tag;
  block->device = &device_;
  block->owner = shared_from_this();
  if (options_.canaries) {
    std::fill_n(memory, kGuard, kGuardByte);
    std::fill_n(block->data + bytes, kGuard, kGuardByte);
  }
  if (options_.nan_fill) std::memset(block->data, 0xff, bytes);
  block->place = state_->live.size();
  state_->live.push_back(block);
  MemoryStats& stats = state_->stats;
  ++stats.allocations;
  ++stats.live_blocks;
  stats.live_bytes += static_cast<int64_t>(bytes);
  stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
  return block;
}

namespace {
std::string guard_text(const Block& block) {
  return fmt::format(
      "memory: a kernel wrote outside a block of {} bytes that {} allocated at {}:{} (step {}, "
      "module '{}')",
      block.bytes, block.tag.op, block.tag.site.file, block.tag.site.line, block.tag.step,
      block.tag.module);
}
bool guards_intact(const Block& block) {
  return guard_intact(block.data - kGuard) && guard_intact(block.data + block.bytes);
}
}  // namespace

void Allocator::release(Block* block) noexcept {
  if (block->owner == nullptr) {
    delete block;
    return;
  }
  // Held until the lock is gone: this may be the allocator's own last owner.
  const std::shared_ptr<Allocator> owner = std::move(block->owner);
  State& state = *owner->state_;
  const std::lock_guard lock(state.mutex);
  if (owner->options_.canaries && state.broken_guard.empty() && !guards_intact(*block)) {
    state.broken_guard = guard_text(*block);
  }
  state.live.back()->place = block->place;
  state.live[block->place] = state.live.back();
  state.live.pop_back();
  --state.stats.live_blocks;
  state.stats.live_bytes -= static_cast<int64_t>(block->bytes);
  state.stats.cached_bytes += static_cast<int64_t>(block->capacity);
  state.cache[block->capacity].push_back(block);
}

void Allocator::record_use(Block& block, const Stream& stream) {
  if (stream.id == block.stream) return;
  const uint64_t event = device_.record_event(stream);
  device_.wait_event(Stream{&device_, block.stream}, event);
}

void Allocator::check_canaries() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->broken_guard.empty()) throw Error(state_->broken_guard);
  if (!options_.canaries) return;
  for (const Block* block : state_->live) {
    if (!guards_intact(*block)) throw Error(guard_text(*block));
  }
}

MemoryStats Allocator::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

std::vector<LiveBlock> Allocator::live() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<LiveBlock> result;
  for (const Block* block : state_->live) result.push_back({block->data, block->bytes, block->tag});
  return result;
}

void Allocator::trim() {
  const std::lock_guard lock(state_->mutex);
  const size_t guard = options_.canaries ? kGuard : 0;
  for (auto& [capacity, blocks] : state_->cache) {
    for (Block* block : blocks) {
      device_.deallocate(block->data - guard, capacity);
      state_->spare.push_back(block);
    }
    blocks.clear();
  }
  state_->stats.cached_bytes = 0;
}

Block* adopt(std::byte* data, size_t bytes, DeviceRuntime& device,
             std::shared_ptr<const void> keep_alive) {
  auto* block = new Block;
  block->data = data;
  block->bytes = bytes;
  block->capacity = bytes;
  block->references.store(1, std::memory_order_relaxed);
  block->device = &device;
  block->keep_alive = std::move(keep_alive);
  return block;
}

}  // namespace faultline
