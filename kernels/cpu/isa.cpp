#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "kernels/cpu/targets.h"

#include "hwy/targets.h"

namespace faultline::cpu {
namespace {

Isa highest() {
#if HWY_ARCH_X86
  const int64_t supported = hwy::SupportedTargets();
  if ((supported & HWY_AVX3) != 0) return Isa::v4;
  if ((supported & HWY_AVX2) != 0) return Isa::v3;
#endif
  return Isa::v2;
}

std::string_view level_name(Isa isa) {
  constexpr std::string_view kNames[] = {"v2", "v3", "v4"};
  return kNames[static_cast<int>(isa)];
}

Isa choose() {
  const Isa best = highest();
  const char* wanted = std::getenv("FAULTLINE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (const Isa isa : {Isa::v2, Isa::v3, Isa::v4}) {
    if (level_name(isa) != wanted) continue;
    require(isa <= best,
            "FAULTLINE_ISA: this CPU goes up to {}, got {}. Name a lower level or unset it.",
            level_name(best), wanted);
    return isa;
  }
  fail("FAULTLINE_ISA: expected v2, v3 or v4, got '{}'. Name one of them or unset it.", wanted);
}

bool has_bf16_products() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

}  // namespace

Isa active_isa() {
  // A choice that throws is made again at the next call.
  static const Isa chosen = choose();
  return chosen;
}

std::string isa_name() {
  switch (active_isa()) {
    case Isa::v2:
      return "sse4";
    case Isa::v3:
      return "avx2";
    case Isa::v4:
      break;
  }
  return has_bf16_products() ? "avx512_bf16" : "avx512";
}

}  // namespace faultline::cpu
