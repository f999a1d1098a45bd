#pragma once

// Which Highway targets exist: SSE4, AVX2 and AVX3, the levels of isa.h. Comes before any Highway
// header.

// x86-64-v2 lacks AES and carry-less multiplication, and no kernel wants them.
#define HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)

#include "hwy/detect_targets.h"

// The table that `name()` returns for the active level, from inside HWY_ONCE.
#if HWY_ARCH_X86
#define FAULTLINE_FOR_ACTIVE_ISA(name) \
  switch (active_isa()) {              \
    case Isa::v2:                      \
      return N_SSE4::name();           \
    case Isa::v3:                      \
      return N_AVX2::name();           \
    case Isa::v4:                      \
      break;                           \
  }                                    \
  return N_AVX3::name()
#else
#define FAULTLINE_FOR_ACTIVE_ISA(name) return HWY_STATIC_DISPATCH(name)()
#endif
