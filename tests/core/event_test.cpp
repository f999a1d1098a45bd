#include "core/event.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "core/context.h"
#include "core/error.h"

namespace faultline {
namespace {

struct Tick {
  int number;
};
struct Tock {
  int number;
};

TEST(EventBus, DeliversByTypeInTheOrderOfSubscription) {
  EventBus bus;
  std::vector<int> seen;
  const auto first = bus.subscribe<Tick>([&](const Tick& t) { seen.push_back(t.number); });
  const auto other = bus.subscribe<Tock>([&](const Tock& t) { seen.push_back(-t.number); });
  const auto second = bus.subscribe<Tick>([&](const Tick& t) { seen.push_back(10 * t.number); });
  bus.emit(Tick{1});
  bus.emit(Tock{2});
  EXPECT_EQ(seen, (std::vector<int>{1, 10, -2}));
}

TEST(EventBus, ASubscriptionEndsWithItsHandle) {
  EventBus bus;
  int count = 0;
  EXPECT_FALSE(bus.wanted<Tick>());
  {
    const auto subscription = bus.subscribe<Tick>([&](const Tick&) { ++count; });
    EXPECT_TRUE(bus.wanted<Tick>());
    EXPECT_FALSE(bus.wanted<Tock>());
    bus.emit(Tick{1});
  }
  EXPECT_FALSE(bus.wanted<Tick>());
  bus.emit(Tick{2});
  EXPECT_EQ(count, 1);
}

TEST(EventBus, AHandlerMayUnsubscribeItselfAndOthers) {
  EventBus bus;
  std::vector<int> seen;
  EventBus::Subscription self;
  EventBus::Subscription later;
  self = bus.subscribe<Tick>([&](const Tick&) {
    seen.push_back(1);
    self.reset();
    later.reset();
  });
  later = bus.subscribe<Tick>([&](const Tick&) { seen.push_back(2); });
  const auto last = bus.subscribe<Tick>([&](const Tick&) { seen.push_back(3); });
  bus.emit(Tick{});
  bus.emit(Tick{});
  EXPECT_EQ(seen, (std::vector<int>{1, 3, 3}));
}

TEST(EventBus, AHandlerMaySubscribe) {
  EventBus bus;
  int count = 0;
  std::vector<EventBus::Subscription> more;
  const auto first = bus.subscribe<Tick>([&](const Tick&) {
    for (int i = 0; i < 100; ++i) {
      more.push_back(bus.subscribe<Tock>([&](const Tock&) { ++count; }));
    }
  });
  bus.emit(Tick{});
  bus.emit(Tock{});
  EXPECT_EQ(count, 100);
}

// The inner emission must not move the list under the outer one.
TEST(EventBus, EmittingInsideAHandlerReachesEveryObserverOfBoth) {
  EventBus bus;
  std::vector<int> seen;
  auto gone = bus.subscribe<Tick>([&](const Tick&) { seen.push_back(0); });
  const auto outer = bus.subscribe<Tick>([&](const Tick&) {
    seen.push_back(1);
    bus.emit(Tock{});
  });
  const auto after = bus.subscribe<Tick>([&](const Tick&) { seen.push_back(2); });
  const auto inner = bus.subscribe<Tock>([&](const Tock&) { seen.push_back(3); });
  gone.reset();
  bus.emit(Tick{});
  EXPECT_EQ(seen, (std::vector<int>{1, 3, 2}));
}

TEST(EventBus, AnExceptionOfAHandlerReachesTheEmitterAndLeavesTheBusUsable) {
  EventBus bus;
  int count = 0;
  auto bad = bus.subscribe<Tick>([](const Tick&) { throw std::runtime_error("no"); });
  const auto good = bus.subscribe<Tick>([&](const Tick&) { ++count; });
  EXPECT_THROW(bus.emit(Tick{}), std::runtime_error);
  bad.reset();
  bus.emit(Tick{});
  EXPECT_EQ(count, 1);
}

struct GreetingSeam {
  static constexpr const char* name = "greeting";
  using Signature = int(int);
  static int standard(int x) { return x; }
};

TEST(Seam, IsReplacedInScopeOnlyAndNests) {
  SeamTable seams;
  EXPECT_EQ(seams.call<GreetingSeam>(1), 1);
  {
    const auto outer = seams.replace<GreetingSeam>([](int x) { return x + 10; });
    EXPECT_EQ(seams.call<GreetingSeam>(1), 11);
    {
      const auto inner =
          seams.replace<GreetingSeam>([](int x) { return GreetingSeam::standard(x) + 100; });
      EXPECT_EQ(seams.call<GreetingSeam>(1), 101);
      EXPECT_EQ(seams.replaced().size(), 2U);
    }
    EXPECT_EQ(seams.call<GreetingSeam>(1), 11);
    EXPECT_STREQ(seams.replaced()[0], "greeting");
  }
  EXPECT_EQ(seams.call<GreetingSeam>(1), 1);
  EXPECT_TRUE(seams.replaced().empty());
}

TEST(Seam, KnowsWhichReplacementNobodyAskedFor) {
  SeamTable seams;
  const auto guard = seams.replace<GreetingSeam>([](int x) { return x; });
  ASSERT_EQ(seams.unasked().size(), 1U);
  EXPECT_STREQ(seams.unasked()[0], "greeting");
  seams.call<GreetingSeam>(1);
  EXPECT_TRUE(seams.unasked().empty());
}

TEST(Seam, BelongsToOneContext) {
  Context a;
  Context b;
  const auto guard = a.seams.replace<GreetingSeam>([](int) { return 7; });
  EXPECT_EQ(a.seams.call<GreetingSeam>(1), 7);
  EXPECT_EQ(b.seams.call<GreetingSeam>(1), 1);
}

TEST(Context, GuardsNestAndRestore) {
  Context& outer = Context::current();
  {
    Context inner;
    const ContextGuard guard(inner);
    EXPECT_EQ(&Context::current(), &inner);
  }
  EXPECT_EQ(&Context::current(), &outer);
}

TEST(Context, ScopedValuesAreSetBack) {
  Context context;
  const ContextGuard guard(context);
  EXPECT_TRUE(context.gradients);
  {
    const NoGrad off;
    const Scoped<int64_t> step(context.step, 5);
    EXPECT_FALSE(context.gradients);
    EXPECT_EQ(context.step, 5);
  }
  EXPECT_TRUE(context.gradients);
  EXPECT_EQ(context.step, -1);
}

// What the closure holds must live until it returns, though nobody else holds it any more.
TEST(Seam, AReplacementMayEndItselfWhileItRuns) {
  SeamTable seams;
  std::shared_ptr<void> guard;
  std::weak_ptr<int> watch;
  {
    const auto held = std::make_shared<int>(5);
    watch = held;
    guard = seams.replace<GreetingSeam>([held, &guard, &watch](int) {
      const std::weak_ptr<int>& seen = watch;
      guard.reset();
      return seen.expired() ? 0 : 5;
    });
  }
  EXPECT_EQ(seams.call<GreetingSeam>(1), 5);
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(seams.call<GreetingSeam>(1), 1);
}

}  // namespace
}  // namespace faultline
