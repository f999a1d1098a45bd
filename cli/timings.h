#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

namespace faultline::cli {

// Half of the values lie on each side of it. There is at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What a piece of work takes when nothing disturbs it, from the times of several runs: the least.
// Other processes, and threads that wake late, can only add to a run. There is at least one.
inline double undisturbed(std::span<const double> times) {
  return *std::min_element(times.begin(), times.end());
}

constexpr int kTimedRuns = 7;

// Milliseconds of kTimedRuns runs of `body` after one that is not timed; `Clock` is as in <chrono>.
template <class Clock = std::chrono::steady_clock, class Body>
std::vector<double> timed_runs(const Body& body) {
  std::vector<double> times;
  body();
  for (int i = 0; i < kTimedRuns; ++i) {
    const auto start = Clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return times;
}

// The same for work that can be done by several numbers of threads, `body(threads)`: the least of
// all. A small piece is done soonest by one thread, and then no other needs to wake.
template <class Clock = std::chrono::steady_clock, class Body>
double undisturbed_milliseconds(const Body& body, std::span<const int> thread_counts) {
  std::vector<double> times;
  for (const int threads : thread_counts) {
    times.push_back(undisturbed(timed_runs<Clock>([&] { body(threads); })));
  }
  return undisturbed(times);
}

}  // namespace faultline::cli
