#pragma once

#include <cstdint>

namespace faultline {

// Threads that OpenMP would use here (OMP_NUM_THREADS, else the cores); 1 in a build without it.
int default_threads();

// Runs body(i) for i in [0, count) on up to `threads` OpenMP threads, in contiguous chunks. The
// bodies must not depend on each other: the number of threads never changes a result.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace faultline
