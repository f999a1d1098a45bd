#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "kernels/cpu/isa.h"

namespace faultline::test {
namespace {

TEST(CpuIsa, NameFollowsTheLevel) {
  const std::string name = cpu::isa_name();
  switch (cpu::active_isa()) {
    case cpu::Isa::v2:
      EXPECT_EQ(name, "sse4");
      break;
    case cpu::Isa::v3:
      EXPECT_EQ(name, "avx2");
      break;
    case cpu::Isa::v4:
      EXPECT_TRUE(name == "avx512" || name == "avx512_bf16") << name;
      break;
  }
}

[[noreturn]] void choose_with(const char* wanted) {
  setenv("FAULTLINE_ISA", wanted, 1);
  try {
    std::fprintf(stderr, "chose %s", cpu::isa_name().c_str());
    std::exit(0);
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "%s", error.what());
    std::exit(2);
  }
}

// The level is chosen once per process, so each choice has a process of its own.
TEST(CpuIsa, IsChosenByTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(choose_with("v2"), testing::ExitedWithCode(0), "chose sse4");
}

TEST(CpuIsa, RefusesAnUnknownLevel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(choose_with("avx2"), testing::ExitedWithCode(2), "expected v2, v3 or v4, got 'avx2'");
}

}  // namespace
}  // namespace faultline::test
