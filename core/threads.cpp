#include "core/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace faultline {

int default_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace faultline
