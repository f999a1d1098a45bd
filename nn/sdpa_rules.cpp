#include "nn/sdpa_rules.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/context.h"

namespace faultline::nn {
namespace {

using Passes = bool (*)(const SdpaCall&, const SdpaDevice&);

struct Filter {
  Passes passes;
  const char* reason;  // why a call that does not pass is refused
};

// ---- what several backends ask ------------------------------------------------------------------

bool is_half(const SdpaCall& call) { return call.dtype == DType::f16 || call.dtype == DType::bf16; }
bool between(int sm, int low, int high) { return sm >= low && sm <= high; }
// Consumer chips whose shared memory is too small for the widest backward tiles.
bool has_small_tiles(int sm) { return between(sm, 86, 89) || between(sm, 120, 121); }
bool is_sm90_or_sm10x(int sm) { return sm == 90 || between(sm, 100, 109); }

int64_t head_size(const SdpaCall& call) { return call.query[-1]; }

bool has_four_dimensions(const SdpaCall& call) {
  return call.query.rank() == 4 && call.key.rank() == 4 && call.value.rank() == 4;
}

bool has_one_batch(const SdpaCall& call, const SdpaDevice&) {
  return call.query[0] == call.key[0] && call.query[0] == call.value[0];
}

bool has_fitting_heads(const SdpaCall& call, const SdpaDevice&) {
  if (call.key[1] != call.value[1]) return false;
  if (!call.enable_gqa) return call.query[1] == call.key[1];
  return call.key[1] > 0 && call.query[1] % call.key[1] == 0;
}

bool has_positions(const SdpaCall& call, const SdpaDevice&) {
  return call.query[2] > 0 && call.key[2] > 0;
}

bool has_unit_strides(const SdpaCall& call, const SdpaDevice&) { return call.last_strides_are_one; }

bool has_low_precision(const SdpaCall& call, const SdpaDevice& device) {
  return call.dtype == DType::f16 || (call.dtype == DType::bf16 && device.sm >= 80);
}

constexpr Filter kOneBatch{&has_one_batch, "q, k and v differ in batch size"};
constexpr Filter kHeads{&has_fitting_heads,
                        "q and k differ in heads, and enable_gqa is off or they do not divide"};
constexpr Filter kPositions{&has_positions, "q or k has no positions"};
constexpr Filter kStrides{&has_unit_strides, "a last dimension is not contiguous"};

// ---- flash --------------------------------------------------------------------------------------

constexpr Filter kFlash[] = {
    {[](const SdpaCall&, const SdpaDevice& d) { return d.flash_is_enabled; }, "it is disabled"},
    {[](const SdpaCall& c, const SdpaDevice&) { return !c.has_mask; }, "it takes no attn_mask"},
    {[](const SdpaCall& c, const SdpaDevice&) {
       return c.query[-1] == c.key[-1] && c.query[-1] == c.value[-1] && head_size(c) <= 256;
     },
     "q, k and v must have one head size of at most 256"},
    {[](const SdpaCall&, const SdpaDevice& d) { return between(d.sm, 80, 121); },
     "the device is not in sm80 to sm121"},
    {[](const SdpaCall& c, const SdpaDevice& d) {
       const int64_t size = head_size(c);
       const bool fits = size <= 192 || (size > 224 && c.dropout == 0);
       return !c.requires_grad || !has_small_tiles(d.sm) || fits;
     },
     "it does not train head sizes 193 to 224 (with dropout, to 256) on sm86 to sm89 and sm120"},
    {[](const SdpaCall& c, const SdpaDevice&) { return !c.is_causal || c.query[2] == c.key[2]; },
     "is_causal with unlike lengths: it would align bottom right, PyTorch means top left"},
    {&has_low_precision, "it takes f16, and bf16 from sm80 on"},
    kOneBatch,
    kHeads,
    kPositions,
    kStrides,
};

// ---- memory-efficient ---------------------------------------------------------------------------

// Elements that CUTLASS reads at once.
int64_t alignment(const SdpaCall& call, const SdpaDevice& device) {
  const bool tensor_cores = device.sm >= 80 || (device.sm >= 70 && is_half(call));
  const int64_t least = device.sm >= 80 ? 4 : 1;
  return tensor_cores ? std::max<int64_t>(least, is_half(call) ? 8 : 4) : least;
}

constexpr Filter kEfficient[] = {
    {[](const SdpaCall&, const SdpaDevice& d) { return d.efficient_is_enabled; }, "it is disabled"},
    {[](const SdpaCall&, const SdpaDevice& d) { return between(d.sm, 50, 121); },
     "the device is not in sm50 to sm121"},
    {[](const SdpaCall& c, const SdpaDevice& d) {
       const int64_t step = alignment(c, d);
       return c.query[-1] == c.key[-1] && c.query[-1] > 0 && c.query[-1] % step == 0 &&
              c.value[-1] > 0 && c.value[-1] % step == 0;
     },
     "q and k must have one head size, and it and that of v must be multiples of the alignment (8 "
     "for 16-bit dtypes, 4 for f32 from sm80 on)"},
    {[](const SdpaCall& c, const SdpaDevice& d) { return d.sm < 80 || c.starts_are_aligned; },
     "q, k or v does not start at an aligned address"},
    kPositions,
    kStrides,
    kOneBatch,
    kHeads,
    {[](const SdpaCall& c, const SdpaDevice& d) {
       return c.dtype == DType::f16 || c.dtype == DType::f32 ||
              (c.dtype == DType::bf16 && d.sm >= 80);
     },
     "it takes f16 and f32, and bf16 from sm80 on"},
};

// ---- cuDNN --------------------------------------------------------------------------------------

bool supports_256(const SdpaDevice& device) {
  const bool is_early_sm107 = device.sm == 107 && device.cudnn <= 92500;
  return is_sm90_or_sm10x(device.sm) && !is_early_sm107 && device.cudnn > 92200 &&
         device.cudnn_frontend >= 12400;
}

bool has_cudnn_head_size(const SdpaCall& call, const SdpaDevice& device) {
  const int64_t k = call.query[-1];
  const int64_t v = call.value[-1];
  const bool is_192_128 =
      is_sm90_or_sm10x(device.sm) && device.cudnn >= 91100 && k == 192 && v == 128;
  const int64_t limit = supports_256(device) ? 256 : is_192_128 ? 192 : 128;
  return k <= limit && v <= limit;
}

bool trains_in_cudnn(const SdpaCall& call, const SdpaDevice& device) {
  if (!call.requires_grad || !supports_256(device)) return true;
  const int64_t k = call.query[-1];
  const int64_t v = call.value[-1];
  return (k <= 128 && v <= 128) || (k == 192 && v == 128) || (k == 256 && v == 256);
}

// Of the axes of a mask each must have the size of the scores' or be 1.
bool has_cudnn_mask(const SdpaCall& call, const SdpaDevice&) {
  if (!call.has_mask) return true;
  if (call.mask.rank() != 2 && call.mask.rank() != 4) return false;
  const Shape scores{call.query[0], call.query[1], call.query[2], call.key[2]};
  for (int64_t axis = -call.mask.rank(); axis < 0; ++axis) {
    if (call.mask[axis] != scores[axis] && call.mask[axis] != 1) return false;
  }
  return true;
}

constexpr Filter kCudnn[] = {
    {[](const SdpaCall&, const SdpaDevice& d) { return d.cudnn >= 90000; },
     "PyTorch was built without cuDNN 9 or later"},
    {[](const SdpaCall& c, const SdpaDevice& d) {
       return c.dropout == 0 || d.cudnn <= 91100 || d.cudnn >= 91400;
     },
     "cuDNN 9.11 to 9.13 has no dropout"},
    {[](const SdpaCall&, const SdpaDevice& d) { return d.cudnn_is_enabled; }, "it is disabled"},
    {[](const SdpaCall&, const SdpaDevice& d) { return !d.is_deterministic; },
     "it is not deterministic"},
    {&has_low_precision, "it takes f16, and bf16 from sm80 on"},
    {[](const SdpaCall& c, const SdpaDevice&) { return !c.mask_requires_grad; },
     "the mask wants a gradient"},
    {&has_cudnn_mask, "the mask must be [Q, K] or [B, H, Q, K], with these sizes or 1"},
    {[](const SdpaCall&, const SdpaDevice& d) { return between(d.sm, 80, 121); },
     "the device is not in sm80 to sm121"},
    {[](const SdpaCall& c, const SdpaDevice&) {
       return c.dropout * 16 == std::floor(c.dropout * 16);
     },
     "dropout must be a multiple of 1/16"},
    kPositions,
    kStrides,
    kOneBatch,
    kHeads,
    {&has_cudnn_head_size,
     "head sizes above 128 (256 on sm90 and sm10x with cuDNN after 9.22, 192 with 128 with 9.11)"},
    {[](const SdpaCall& c, const SdpaDevice&) {
       return c.query[-1] % 8 == 0 && c.value[-1] % 8 == 0;
     },
     "head sizes must be multiples of 8"},
    {[](const SdpaCall& c, const SdpaDevice&) { return c.key[2] != 1; }, "k has one position"},
    {[](const SdpaCall& c, const SdpaDevice&) { return c.dropout == 0 || c.query[2] != 1; },
     "q has one position, with dropout"},
    {&trains_in_cudnn, "it does not train these head sizes"},
};

constexpr Filter kMath[] = {
    {[](const SdpaCall&, const SdpaDevice& d) { return d.math_is_enabled; }, "it is disabled"},
};

std::span<const Filter> filters_of(SdpaBackend backend) {
  switch (backend) {
    case SdpaBackend::flash:
      return kFlash;
    case SdpaBackend::efficient:
      return kEfficient;
    case SdpaBackend::cudnn:
      return kCudnn;
    case SdpaBackend::math:
      break;
  }
  return kMath;
}

// ---- the choice ---------------------------------------------------------------------------------

bool prefers_cudnn(const SdpaDevice& device) {
  if (device.cudnn_is_deprioritized || device.cudnn <= 91500) return false;
  const int major = device.sm / 10;
  const int minor = device.sm % 10;
  return (major == 9 || major == 10) && (device.cuda >= 13000 || minor == 0 || minor == 3);
}

std::vector<SdpaBackend> priority(const SdpaDevice& device) {
  using enum SdpaBackend;
  if (prefers_cudnn(device)) return {cudnn, flash, efficient, math};
  return {flash, efficient, math, cudnn};
}

std::vector<std::string> refusals(SdpaBackend backend, const SdpaCall& call,
                                  const SdpaDevice& device) {
  // The other filters look at dimensions that may not be there.
  if (backend != SdpaBackend::math && !has_four_dimensions(call)) {
    return {"q, k and v must have 4 dimensions"};
  }
  std::vector<std::string> reasons;
  for (const Filter& filter : filters_of(backend)) {
    if (!filter.passes(call, device)) reasons.emplace_back(filter.reason);
  }
  return reasons;
}

}  // namespace

const char* name(SdpaBackend backend) {
  constexpr const char* kNames[] = {"flash", "efficient", "cudnn", "math"};
  return kNames[static_cast<int>(backend)];
}

SdpaChoice sdpa_choice(const SdpaCall& call, const SdpaDevice& device) {
  SdpaChoice choice{.chosen = {}, .order = priority(device), .rejected = {}};
  for (const SdpaBackend backend : choice.order) {
    std::vector<std::string> reasons = refusals(backend, call, device);
    if (reasons.empty()) {
      choice.chosen = backend;
      break;
    }
    choice.rejected.push_back({backend, std::move(reasons)});
  }
  Context::current().events.emit(SdpaChoiceEvent{call, device, choice});
  return choice;
}

}  // namespace faultline::nn
