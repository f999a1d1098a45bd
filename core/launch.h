#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/attributes.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/site.h"

namespace faultline {

// A tensor as a kernel sees it: address, type and layout, without ownership.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;  // in elements

  // The elements as T. Throws InternalError when the view holds another dtype.
  template <class T>
  T* as() const {
    invariant(dtype == dtype_of<T>(), "kernel: reads a {} view as {}", name(dtype),
              name(dtype_of<T>()));
    return reinterpret_cast<T*>(data);
  }
  // False for an absent optional input.
  bool defined() const { return data != nullptr || shape.rank() != 0; }
  int64_t numel() const;
  // Whether the elements follow each other in row-major order.
  bool is_contiguous() const;
};

struct ByteRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

constexpr int kMaxInputs = 9;
constexpr int kMaxOutputs = 4;

// What every kernel receives. An absent optional input is an undefined view.
struct KernelArgs {
  TensorView inputs[kMaxInputs];
  TensorView outputs[kMaxOutputs];
  int input_count = 0;
  int output_count = 0;
  int threads = 1;  // OpenMP threads that this launch may use; never changes a result
  Attributes attributes;
};

using Kernel = void (*)(const KernelArgs&);

// A kernel and its name, with static storage duration: its address is the kernel's id.
struct KernelRecord {
  const char* name;
  Kernel run;
};

enum class Phase : uint8_t { forward, backward, optimizer, other };
// "forward", ...
const char* name(Phase phase);

// Who asked for the launch. The strings live as long as the process (see intern.h).
struct LaunchLabel {
  const char* op = "";
  const char* module = "";
  Phase phase = Phase::forward;
  const char* reason = "";  // why this kernel was selected
  Site site;
};

// One unit of work as data: it can be run, scheduled, checked, recorded and replayed.
// Nothing in it owns memory; what must vary between replays (step, learning rate) is reached
// through a view.
struct Launch {
  const KernelRecord* kernel = nullptr;
  KernelArgs args;
  LaunchLabel label;
  double flops = 0;
  // Memory reached through pointers inside a view's data (multi-tensor launches).
  std::span<const ByteRange> indirect_reads;
  std::span<const ByteRange> indirect_writes;

  // The memory of all inputs, or outputs, and the indirect ranges.
  std::vector<ByteRange> reads() const;
  std::vector<ByteRange> writes() const;
  double bytes() const;  // read plus written
};

// The bytes a view spans, from its first to its last element.
ByteRange byte_range(const TensorView& view);

class DeviceRuntime;

struct Stream {
  DeviceRuntime* device = nullptr;
  int id = 0;
};

// The one way to touch tensor memory: submits to the stream's device, hands the launch to the
// current Context's recorder, and emits a LaunchEvent to its observers after the kernel was
// submitted.
void launch(const Stream& stream, const Launch& launch);

// Seen by observers. A replay emits it again.
struct LaunchEvent {
  const Launch& launch;
  Stream stream;
};

// Keeps what is launched while it hangs on a Context.
class LaunchRecorder {
 public:
  virtual ~LaunchRecorder() = default;
  // Called after each submission; spans in `launch` are valid during the call only.
  virtual void record(const Stream& stream, const Launch& launch) = 0;
};

// A recorded list of launches. The caller keeps the memory alive, usually by recording with an
// allocator of the list's own.
class LaunchList : public LaunchRecorder {
 public:
  void record(const Stream& stream, const Launch& launch) override;
  // Launches the items again in their order. Throws InvalidArgument while this list is the current
  // Context's recorder.
  void replay() const;
  size_t size() const { return items_.size(); }
  const Launch& operator[](size_t i) const { return items_[i].launch; }

 private:
  struct Item {
    Stream stream;
    Launch launch;
    std::vector<ByteRange> indirect_reads, indirect_writes;
  };
  std::vector<Item> items_;
};

}  // namespace faultline
