#pragma once

#include <string>

namespace faultline::cpu {

// Instruction sets that the kernels are compiled for, named as the x86-64 levels: v2 has SSE4.2,
// v3 AVX2 with FMA and F16C, v4 AVX-512 (F, BW, DQ, VL). Results are equal to the last bit within
// a level, not between levels.
enum class Isa { v2, v3, v4 };

// The level that every kernel runs at: the highest of this CPU, or the one that the environment
// variable FAULTLINE_ISA names (v2, v3 or v4). Chosen at the first call and then fixed. Throws
// InvalidArgument when the variable names no level or one that the CPU lacks.
Isa active_isa();

// "sse4", "avx2" or "avx512", with "_bf16" when the CPU multiplies bf16 and the level has AVX-512.
std::string isa_name();

}  // namespace faultline::cpu
