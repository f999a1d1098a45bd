#include "cli/timings.h"

#include <gtest/gtest.h>

namespace faultline::cli {
namespace {

// Time that passes only where a test says so.
struct FakeClock {
  using duration = std::chrono::microseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<FakeClock>;
  static constexpr bool is_steady = true;
  static time_point now() { return time_point(passed); }
  static inline duration passed{0};
};

TEST(Timings, MedianIsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(Timings, LeaveTheFirstRunOut) {
  int run = 0;
  const std::vector<double> times =
      timed_runs<FakeClock>([&run] { FakeClock::passed += std::chrono::milliseconds(++run); });
  EXPECT_EQ(times, (std::vector<double>{2, 3, 4, 5, 6, 7, 8}));
}

// On a machine whose cores are taken, a second thread begins some 8 ms late, in most runs.
TEST(Timings, OfABoundHoldNoWaitForAThread) {
  int run = 0;
  const auto copy = [&run](int threads) {
    const bool waits = threads > 1 && ++run % 4 != 0;
    FakeClock::passed += std::chrono::microseconds(waits ? 8000 : 100 / threads);
  };
  // The median of two threads' runs, of which three in four wait, is the wait.
  EXPECT_EQ(median(timed_runs<FakeClock>([&] { copy(2); })), 8);
  run = 0;
  const int both[] = {1, 2};
  EXPECT_EQ(undisturbed_milliseconds<FakeClock>(copy, both), 0.05);

  // When every run of two threads waits, one thread says what the work takes.
  const auto always = [](int threads) {
    FakeClock::passed += std::chrono::microseconds(threads > 1 ? 8000 : 100);
  };
  EXPECT_EQ(undisturbed_milliseconds<FakeClock>(always, both), 0.1);
}

// Where two threads are faster, their rate is the bound.
TEST(Timings, OfABoundAreThoseOfTheBestNumberOfThreads) {
  const auto work = [](int threads) {
    FakeClock::passed += std::chrono::microseconds(1000 / threads);
  };
  const int counts[] = {1, 2, 4};
  EXPECT_EQ(undisturbed_milliseconds<FakeClock>(work, counts), 0.25);
}

}  // namespace
}  // namespace faultline::cli
