// The engine on its runtime: seams, events, allocator, devices, recorded launches, threads.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "core/intern.h"
#include "tests/support/compare.h"
#include "tests/support/recording_device.h"

namespace faultline {
namespace {

using test::same_bits;

// Two layers, gelu between, mean cross entropy: what a training step launches.
struct Mlp {
  Tensor x, labels, w1, b1, w2, b2;

  explicit Mlp(uint64_t seed = 1)
      : x(normal({5, 7}, 0, 1, seed, 1)),
        labels(tensor({int64_t{0}, int64_t{2}, int64_t{1}, int64_t{2}, int64_t{0}})),
        w1(normal({11, 7}, 0, 0.3, seed, 2)),
        b1(normal({11}, 0, 0.3, seed, 3)),
        w2(normal({3, 11}, 0, 0.3, seed, 4)),
        b2(normal({3}, 0, 0.3, seed, 5)) {
    for (const Tensor& parameter : parameters()) {
      set_requires_grad(parameter);
      parameter.autograd()->name = "p";
    }
  }
  std::vector<Tensor> parameters() const { return {w1, b1, w2, b2}; }

  Tensor loss() const {
    return mean(cross_entropy_rows(linear(gelu(linear(x, w1, b1)), w2, b2), labels));
  }
  // One forward and backward on fresh gradients; the loss, then the gradients.
  std::vector<Tensor> step() const {
    for (const Tensor& parameter : parameters()) clear_gradient(parameter);
    const Tensor value = loss();
    backward(value);
    std::vector<Tensor> result{value.detach()};
    for (const Tensor& parameter : parameters()) result.push_back(gradient(parameter));
    return result;
  }
};

std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(clone(tensor));
  return result;
}

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
}

// ---- seams --------------------------------------------------------------------------------------

TEST(KernelSeam, IsReplacedInScopeOnly) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = tensor({1.0F, 2.0F});
  const Tensor standard = exp(x);
  const auto run_for = [&] {
    std::string kernel;
    std::string reason;
    const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
      kernel = event.launch.kernel->name;
      reason = event.launch.label.reason;
    });
    const Tensor y = exp(x);
    EXPECT_TRUE(test::close(y.to_vector<double>(), {2.718281828459045, 7.38905609893065},
                            {.relative = 3e-7}));  // two roundings of f32
    return kernel + ": " + reason;
  };
  EXPECT_EQ(run_for(), "exp: cpu: f32 or 16-bit");
  {
    const auto forced = context.seams.replace<KernelSeam>([](const SelectionRequest& request) {
      return Selection{&request.op.reference, "the test asked for it"};
    });
    EXPECT_EQ(run_for(), "exp/reference: the test asked for it");
  }
  EXPECT_EQ(run_for(), "exp: cpu: f32 or 16-bit");
  EXPECT_TRUE(same_bits(exp(x), standard));
}

TEST(KernelSeam, SelectsTheReferenceWithAReasonWhereCpuHasNoKernel) {
  const auto reason = [](Op op, DType dtype) {
    return std::string(KernelSeam::standard({definition(op), dtype}).reason);
  };
  EXPECT_EQ(reason(Op::exp, DType::f64), "reference: not an f32 or 16-bit computation");
  EXPECT_EQ(reason(Op::where, DType::f32), "reference: its only kernel");
  EXPECT_EQ(reason(Op::exp, DType::bf16), "cpu: f32 or 16-bit");
  EXPECT_THROW(KernelSeam::standard({definition(Op::view), DType::f32}), InternalError);
}

TEST(AccumulateSeam, IsReplacedInScopeOnly) {
  Context context;
  const ContextGuard guard(context);
  const Tensor x = tensor({1.0F, 2.0F});
  set_requires_grad(x);
  backward(sum(x));
  {
    const auto keeps_last = context.seams.replace<AccumulateSeam>(
        [](const Tensor&, const Tensor& contribution) { return contribution; });
    backward(sum(x * 5));
    EXPECT_EQ(gradient(x).to_vector<float>(), (std::vector<float>{5, 5}));
  }
  backward(sum(x));
  EXPECT_EQ(gradient(x).to_vector<float>(), (std::vector<float>{6, 6}));
}

// ---- events -------------------------------------------------------------------------------------

TEST(Observers, SeeEveryLaunchWithItsLabelAndChangeNoBit) {
  Context context;
  const ContextGuard guard(context);
  const Mlp mlp;
  const auto quiet = copies(mlp.step());
  std::vector<std::string> forward;
  std::vector<std::string> reverse;
  double flops = 0;
  const Scoped<const char*> module(context.module, intern("mlp"));
  std::vector<Tensor> watched;
  {
    const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
      EXPECT_STREQ(event.launch.label.module, "mlp");
      (event.launch.label.phase == Phase::forward ? forward : reverse)
          .emplace_back(event.launch.label.op);
      if (std::string(event.launch.label.op) == "linear") flops += event.launch.flops;
    });
    const auto gradients_too = context.events.subscribe<GradientEvent>([](const GradientEvent&) {});
    watched = copies(mlp.step());
  }
  expect_same_bits(watched, quiet);
  EXPECT_EQ(forward[0], "linear");
  EXPECT_EQ(forward[1], "gelu");
  EXPECT_EQ(std::count(reverse.begin(), reverse.end(), "gelu_backward"), 1);
  EXPECT_EQ(std::count(reverse.begin(), reverse.end(), "cross_entropy_backward"), 1);
  EXPECT_EQ(flops, 2.0 * 5 * 11 * 7 + 2.0 * 5 * 3 * 11);
}

TEST(Observers, SeeHowEachContributionJoinsAGradient) {
  Context context;
  const ContextGuard guard(context);
  const Tensor w = tensor({1.0F, 2.0F});
  set_requires_grad(w);
  w.autograd()->name = "layer.w";
  std::vector<std::string> log;
  const auto watch = context.events.subscribe<GradientEvent>([&](const GradientEvent& event) {
    EXPECT_TRUE(event.leaf.same_handle(w));
    log.push_back(fmt::format("{} +{} ={}{}", event.name, event.contribution.to_vector<float>()[0],
                              event.gradient.to_vector<float>()[0], event.first ? " first" : ""));
  });
  backward(sum(w * 3));
  backward(sum(mul(w, w)));
  gradients(sum(w), std::vector<Tensor>{w});
  EXPECT_EQ(log, (std::vector<std::string>{"layer.w +3 =3 first", "layer.w +2 =5"}));
}

// ---- allocator ----------------------------------------------------------------------------------

TEST(SteadyStep, AsksTheDeviceForNothing) {
  Context context;
  const ContextGuard guard(context);
  const Mlp mlp;
  const auto first = copies(mlp.step());
  mlp.step();
  const MemoryStats before = context.allocator->stats();
  const auto third = mlp.step();
  const MemoryStats after = context.allocator->stats();
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_GT(after.allocations, before.allocations);
  expect_same_bits(third, first);
}

TEST(Allocations, CarryTheOpModuleStepAndSiteOfTheCall) {
  Context context;
  const ContextGuard guard(context);
  const Scoped<const char*> module(context.module, intern("block.3"));
  const Scoped<int64_t> step(context.step, 7);
  const Tensor x = tensor({1.0F});
  const int line = __LINE__ + 1;
  const Tensor y = gelu(x);
  const AllocationTag& tag = y.block().tag;
  EXPECT_STREQ(tag.op, "gelu");
  EXPECT_STREQ(tag.module, "block.3");
  EXPECT_EQ(tag.step, 7);
  EXPECT_EQ(tag.site.line, line);
  EXPECT_NE(std::string(tag.site.file).find("runtime_test.cpp"), std::string::npos);
}

// ---- devices and recorded launches --------------------------------------------------------------

TEST(SecondDevice, RecordsTheLaunchesOfAStepInsteadOfRunningThem) {
  std::vector<std::string> on_cpu;
  {
    Context context;
    const ContextGuard guard(context);
    const Mlp mlp;
    const auto watch = context.events.subscribe<LaunchEvent>(
        [&](const LaunchEvent& event) { on_cpu.emplace_back(event.launch.kernel->name); });
    mlp.step();
  }
  test::RecordingDevice device;
  Context context({.device = &device});
  const ContextGuard guard(context);
  const Mlp mlp;
  device.kernels.clear();
  const std::vector<Tensor> result = mlp.step();
  EXPECT_EQ(device.kernels, on_cpu);
  EXPECT_EQ(result[0].shape(), Shape{});
  EXPECT_EQ(result[1].shape(), mlp.w1.shape());
  EXPECT_EQ(&result[1].device(), &device);
  EXPECT_EQ(result[0].item<float>(), 0) << "nothing was computed";
}

TEST(SecondDevice, DoesNotMixWithTheFirst) {
  test::RecordingDevice device;
  const Tensor here = zeros({2});
  Context context({.device = &device});
  const ContextGuard guard(context);
  try {
    add(zeros({2}), here);
    FAIL() << "tensors of two devices in one op";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("add"), std::string::npos) << text;
    EXPECT_NE(text.find("recording and cpu"), std::string::npos) << text;
  }
}

// The list owns the memory of everything in the step: its allocator serves nobody else.
TEST(RecordedStep, ReplaysTheSameBitsAndFollowsChangedInputs) {
  Context context;
  const ContextGuard guard(context);
  const Mlp mlp;
  const auto expected = copies(mlp.step());

  LaunchList list;
  const auto pool = Allocator::create(cpu_device());
  std::vector<Tensor> outputs;
  {
    const Scoped<std::shared_ptr<Allocator>> own(context.allocator, pool);
    const Scoped<LaunchRecorder*> recording(context.recorder, &list);
    outputs = mlp.step();
  }
  EXPECT_GT(list.size(), 10U);
  expect_same_bits(outputs, expected);

  const NoGrad off;
  for (const Tensor& output : outputs) fill_(output, -1);
  list.replay();
  expect_same_bits(outputs, expected);

  Tensor input = mlp.x;
  const std::vector<float> original = input.to_vector<float>();
  const Mlp other(2);
  copy_(input, other.x);
  list.replay();
  EXPECT_FALSE(same_bits(outputs[0], expected[0]));
  const auto changed = copies(outputs);
  {
    const Scoped<bool> on(context.gradients, true);
    expect_same_bits(changed, mlp.step());
  }

  input.assign<float>(original);
  list.replay();
  expect_same_bits(outputs, expected);
}

// ---- threads ------------------------------------------------------------------------------------

TEST(ThreadsContext, TwoThreadsTrainSideBySideWithTheirOwnSeams) {
  const auto train = [](bool reference) {
    Context context({.threads = 1});
    const ContextGuard guard(context);
    std::shared_ptr<void> seam;
    if (reference) {
      seam = context.seams.replace<KernelSeam>([](const SelectionRequest& request) {
        return Selection{&request.op.reference, "test"};
      });
    }
    int foreign = 0;
    const auto watch = context.events.subscribe<LaunchEvent>([&](const LaunchEvent& event) {
      const std::string kernel = event.launch.kernel->name;
      const bool is_op = std::string(event.launch.label.reason) != "its only kernel";
      if (is_op && kernel.ends_with("/reference") != reference &&
          event.launch.label.reason != std::string("reference: its only kernel")) {
        ++foreign;
      }
    });
    const Mlp mlp;
    std::vector<Tensor> last;
    for (int step = 0; step < 20; ++step) {
      last = mlp.step();
      const NoGrad off;
      const std::vector<Tensor> parameters = mlp.parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        accumulate_(parameters[i], affine(last[i + 1], -0.1, 0));
      }
    }
    EXPECT_EQ(foreign, 0) << "a launch of the other thread's seam";
    std::vector<std::vector<float>> values;
    for (const Tensor& tensor : last) values.push_back(tensor.to_vector<float>());
    return values;
  };
  const auto alone_cpu = train(false);
  const auto alone_reference = train(true);
  std::vector<std::vector<float>> cpu;
  std::vector<std::vector<float>> reference;
  std::thread first([&] { cpu = train(false); });
  std::thread second([&] { reference = train(true); });
  first.join();
  second.join();
  EXPECT_EQ(cpu, alone_cpu);
  EXPECT_EQ(reference, alone_reference);
}

TEST(ThreadsContext, AThreadWithoutAContextIsToldByEveryOp) {
  const Tensor x = tensor({1.0F});
  std::string text;
  std::thread([&] {
    try {
      exp(x);
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
  }).join();
  EXPECT_NE(text.find("Context context"), std::string::npos) << text;
}

TEST(ThreadsTape, MayBeDestroyedOnAnotherThread) {
  Context context;
  const ContextGuard guard(context);
  Tensor y = tensor({1.0F, 2.0F});
  set_requires_grad(y);
  for (int i = 0; i < 20000; ++i) y = mul(y, y);
  std::thread([moved = std::move(y)]() mutable { moved = {}; }).join();
  EXPECT_EQ(context.allocator->stats().live_blocks, 0);
}

}  // namespace
}  // namespace faultline
