#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

namespace faultline {

// Keeps the first exception of a parallel region: none may leave an OpenMP thread.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// Threads that OpenMP would use here (OMP_NUM_THREADS, else the cores); 1 in a build without it.
int default_threads();

// Runs body(i) for i in [0, count) on up to `threads` OpenMP threads, in contiguous chunks. The
// bodies must not depend on each other: the number of threads never changes a result. When bodies
// throw, the first exception is thrown again here, after the threads have finished.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  FirstError error;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
      error.keep(std::current_exception());
    }
  }
  error.rethrow();
}

}  // namespace faultline
