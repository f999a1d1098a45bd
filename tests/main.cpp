#include <gtest/gtest.h>

#include "core/context.h"

// One Context for the main thread, so that a test can use tensors at once.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  faultline::Context context;
  faultline::ContextGuard guard(context);
  return RUN_ALL_TESTS();
}
