#include "core/launch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "tests/support/recording_device.h"

namespace faultline {
namespace {

// outputs[0] = inputs[0] + 1, for f32 vectors.
void add_one(const KernelArgs& args) {
  const float* x = args.inputs[0].as<float>();
  float* y = args.outputs[0].as<float>();
  for (int64_t i = 0; i < args.outputs[0].numel(); ++i) y[i] = x[i] + 1;
}
constexpr KernelRecord kAddOne{"add_one", &add_one};

Launch add_one_launch(const Tensor& from, const Tensor& to) {
  Launch work;
  work.kernel = &kAddOne;
  work.args.inputs[0] = from.view();
  work.args.outputs[0] = to.view();
  work.args.input_count = work.args.output_count = 1;
  work.label.op = "add_one";
  return work;
}

TEST(Launch, NamesTheBytesThatItReadsAndWrites) {
  const Tensor x = tensor({1.0F, 2.0F, 3.0F, 4.0F});
  const Tensor y = empty({2});
  Launch work = add_one_launch(x.alias({2}, {2}, 1), y);
  const std::byte extra[8] = {};
  const ByteRange indirect[] = {{extra, extra + 8}};
  work.indirect_writes = indirect;
  ASSERT_EQ(work.reads().size(), 1U);
  EXPECT_EQ(work.reads()[0].begin, x.view().data + 4);
  EXPECT_EQ(work.reads()[0].end, x.view().data + 16);
  ASSERT_EQ(work.writes().size(), 2U);
  EXPECT_EQ(work.writes()[1].begin, extra);
  EXPECT_EQ(work.bytes(), 12 + 8 + 8);
}

TEST(Launch, IsSeenByObserversAfterItRan) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = tensor({1.0F});
  const Tensor y = tensor({0.0F});
  std::vector<float> seen;
  const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
    EXPECT_STREQ(event.launch.label.op, "add_one");
    seen.push_back(*event.launch.args.outputs[0].as<float>());
  });
  launch(context.stream, add_one_launch(x, y));
  EXPECT_EQ(seen, std::vector<float>{2});
}

TEST(LaunchList, ReplaysWhatWasRecordedAndEmitsItsEventsAgain) {
  Context context;
  const ContextGuard guard(context);
  Tensor x = tensor({1.0F, 2.0F});
  const Tensor y = tensor({0.0F, 0.0F});
  const Tensor z = tensor({0.0F, 0.0F});
  LaunchList list;
  {
    const Scoped<LaunchRecorder*> recording(context.recorder, &list);
    launch(context.stream, add_one_launch(x, y));
    launch(context.stream, add_one_launch(y, z));
  }
  launch(context.stream, add_one_launch(x, y));
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].args.inputs[0].data, y.view().data);
  const std::vector<float> changed{10, 20};
  x.assign<float>(changed);
  int events = 0;
  const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent&) { ++events; });
  list.replay();
  EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{12, 22}));
  EXPECT_EQ(events, 2);
}

TEST(LaunchList, KeepsItsOwnCopyOfIndirectRanges) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = tensor({1.0F});
  LaunchList list;
  std::byte memory[16] = {};
  {
    const Scoped<LaunchRecorder*> recording(context.recorder, &list);
    const std::vector<ByteRange> ranges{{memory, memory + 16}};
    Launch work = add_one_launch(x, x);
    work.indirect_reads = ranges;
    launch(context.stream, work);
  }
  std::vector<ByteRange> seen;
  const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
    seen.assign(event.launch.indirect_reads.begin(), event.launch.indirect_reads.end());
  });
  list.replay();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].begin, memory);
}

TEST(DeviceRuntime, TakesLaunchesOfItsOwnStreamOnly) {
  test::RecordingDevice device;
  Context context({.device = &device});
  const ContextGuard guard(context);
  const Tensor x = empty({4});
  EXPECT_EQ(&x.device(), &device);
  launch(context.stream, add_one_launch(x, x));
  EXPECT_EQ(device.kernels, std::vector<std::string>{"add_one"});
  EXPECT_THROW(x.data<float>(), InvalidArgument) << "its memory is not for the host";
}

TEST(LaunchList, RefusesToBeReplayedIntoItself) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = tensor({1.0F});
  LaunchList list;
  const Scoped<LaunchRecorder*> recording(context.recorder, &list);
  launch(context.stream, add_one_launch(x, x));
  EXPECT_THROW(list.replay(), InvalidArgument);
  EXPECT_EQ(list.size(), 1U);
}

}  // namespace
}  // namespace faultline
