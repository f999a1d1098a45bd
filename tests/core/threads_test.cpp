#include "core/threads.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace faultline {
namespace {

TEST(ParallelFor, RunsEveryBodyOnce) {
  for (const int threads : {1, 3, 4}) {
    std::vector<int> runs(1001);
    parallel_for(1001, threads, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_EQ(runs, std::vector<int>(1001, 1)) << threads;
  }
  parallel_for(0, 4, [](int64_t) { FAIL() << "there is nothing to do"; });
}

// An exception that leaves an OpenMP thread ends the process.
TEST(ParallelFor, AnExceptionOfABodyReachesTheCaller) {
  for (const int threads : {1, 4}) {
    const auto bad = [](int64_t i) {
      if (i == 77) throw std::runtime_error("body 77");
    };
    try {
      parallel_for(100, threads, bad);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "body 77");
    }
  }
}

}  // namespace
}  // namespace faultline
