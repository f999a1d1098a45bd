#pragma once

#include <cstdint>

namespace faultline {

// One name per row of ops.def.
enum class Op : uint16_t {
#define FAULTLINE_UNARY(name, autocast) name, name##_backward,
#define FAULTLINE_OP(name, ...) name,
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
};

constexpr int kOpCount = 0
#define FAULTLINE_UNARY(name, autocast) +2
#define FAULTLINE_OP(name, ...) +1
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
    ;

// What autocast does with an op's inputs; see ops.def.
enum class Autocast : uint8_t { lower, full, promote, any };

enum class Determinism : uint8_t { same_bits };

// Which kernels an op has; see ops.def.
enum class Kernels : uint8_t { fast, reference, view };

}  // namespace faultline
