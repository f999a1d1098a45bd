#include "autograd/op.h"
#include "kernels/kernels.h"

// core/ops.def becomes the table of OpDefinition values. A row whose rules or kernel nobody wrote
// is an undefined symbol that names it.
namespace faultline {
namespace {

constexpr uint32_t bits() { return 0; }
template <class... Rest>
constexpr uint32_t bits(int first, Rest... rest) {
  return (1U << first) | bits(rest...);
}

}  // namespace

#define FAULTLINE_UNARY(name, autocast) \
  extern const OpRules rules_##name;    \
  extern const OpRules rules_##name##_backward;
#define FAULTLINE_OP(name, ...) extern const OpRules rules_##name;
#define FAULTLINE_KERNEL(name)
#include "core/ops.def"
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL

namespace {

// The columns' own words.
#define in(...) bits(__VA_ARGS__)
#define out(...) bits(__VA_ARGS__)
#define none() 0U
#define FAULTLINE_CPU_fast(name) \
  { #name, &cpu::name }
#define FAULTLINE_CPU_reference(name) \
  { #name, nullptr }
#define FAULTLINE_CPU_view(name) \
  { #name, nullptr }
#define FAULTLINE_REFERENCE_fast(name) \
  { #name "/reference", &reference::name }
#define FAULTLINE_REFERENCE_reference(name) \
  { #name "/reference", &reference::name }
#define FAULTLINE_REFERENCE_view(name) \
  { #name, nullptr }

#define FAULTLINE_UNARY(name, autocast)                 \
  OpDefinition{#name,                                   \
               1,                                       \
               1,                                       \
               in(0),                                   \
               in(0),                                   \
               out(0),                                  \
               Autocast::autocast,                      \
               Determinism::same_bits,                  \
               Kernels::fast,                           \
               &rules_##name,                           \
               FAULTLINE_CPU_fast(name),                \
               FAULTLINE_REFERENCE_fast(name)},         \
      OpDefinition{#name "_backward",                   \
                   3,                                   \
                   1,                                   \
                   none(),                              \
                   none(),                              \
                   none(),                              \
                   Autocast::autocast,                  \
                   Determinism::same_bits,              \
                   Kernels::fast,                       \
                   &rules_##name##_backward,            \
                   FAULTLINE_CPU_fast(name##_backward), \
                   FAULTLINE_REFERENCE_fast(name##_backward)},
#define FAULTLINE_OP(name, ins, outs, differentiable, saved_in, saved_out, autocast, determinism, \
                     kernels)                                                                     \
  OpDefinition{#name,                                                                             \
               ins,                                                                               \
               outs,                                                                              \
               differentiable,                                                                    \
               saved_in,                                                                          \
               saved_out,                                                                         \
               Autocast::autocast,                                                                \
               Determinism::determinism,                                                          \
               Kernels::kernels,                                                                  \
               &rules_##name,                                                                     \
               FAULTLINE_CPU_##kernels(name),                                                     \
               FAULTLINE_REFERENCE_##kernels(name)},
#define FAULTLINE_KERNEL(name)
constexpr OpDefinition kTable[] = {
#include "core/ops.def"
};
#undef FAULTLINE_UNARY
#undef FAULTLINE_OP
#undef FAULTLINE_KERNEL
#undef in
#undef out
#undef none

static_assert(std::size(kTable) == kOpCount);

}  // namespace

const OpDefinition& definition(Op op) { return kTable[static_cast<int>(op)]; }

std::span<const OpDefinition> all_ops() { return kTable; }

}  // namespace faultline
