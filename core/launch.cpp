#include "core/launch.h"

#include "core/context.h"
#include "core/device.h"

namespace faultline {

int64_t TensorView::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

bool TensorView::is_contiguous() const {
  int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != step) return numel() == 0;
    step *= shape[d];
  }
  return true;
}

const char* name(Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "optimizer", "other"};
  return kNames[static_cast<int>(phase)];
}

ByteRange byte_range(const TensorView& view) {
  if (view.data == nullptr || view.numel() == 0) return {view.data, view.data};
  int64_t low = 0;
  int64_t high = 0;
  for (int d = 0; d < view.shape.rank(); ++d) {
    const int64_t reach = (view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<int64_t>(size_of(view.dtype));
  return {view.data + low * size, view.data + (high + 1) * size};
}

namespace {
std::vector<ByteRange> ranges(const TensorView* views, int count,
                              std::span<const ByteRange> indirect) {
  std::vector<ByteRange> result;
  for (int i = 0; i < count; ++i) {
    if (views[i].data != nullptr) result.push_back(byte_range(views[i]));
  }
  result.insert(result.end(), indirect.begin(), indirect.end());
  return result;
}
}  // namespace

std::vector<ByteRange> Launch::reads() const {
  return ranges(args.inputs, args.input_count, indirect_reads);
}

std::vector<ByteRange> Launch::writes() const {
  return ranges(args.outputs, args.output_count, indirect_writes);
}

double Launch::bytes() const {
  double total = 0;
  for (const auto& list : {reads(), writes()}) {
    for (const ByteRange& range : list) total += static_cast<double>(range.end - range.begin);
  }
  return total;
}

void launch(const Stream& stream, const Launch& launch) {
  stream.device->submit(stream, launch);
  const Context& context = Context::current();
  if (context.recorder != nullptr) context.recorder->record(stream, launch);
  context.events.emit(LaunchEvent{launch, stream});
}

void LaunchList::record(const Stream& stream, const Launch& launch) {
  Item& item =
      items_.emplace_back(Item{stream,
                               launch,
                               {launch.indirect_reads.begin(), launch.indirect_reads.end()},
                               {launch.indirect_writes.begin(), launch.indirect_writes.end()}});
  item.launch.indirect_reads = {};
  item.launch.indirect_writes = {};
}

void LaunchList::replay() const {
  require(Context::current().recorder != this,
          "replay: the list is still recording; take it off the context's recorder first");
  for (const Item& item : items_) {
    Launch again = item.launch;
    again.indirect_reads = item.indirect_reads;
    again.indirect_writes = item.indirect_writes;
    launch(item.stream, again);
  }
}

}  // namespace faultline
