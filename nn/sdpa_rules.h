#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

// How PyTorch's scaled_dot_product_attention chooses its backend on a CUDA device, as data: the
// filters of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp at commit 001f694a, for dense
// tensors. PyTorch takes the first backend whose filters all pass, and says why the others did not
// only when none is left; this says it always. Nothing of Faultline's own routing is here, see
// dispatch.h.
namespace faultline::nn {

enum class SdpaBackend : uint8_t { flash, efficient, cudnn, math };
// "flash", ...
const char* name(SdpaBackend backend);

// What a caller gives scaled_dot_product_attention.
struct SdpaCall {
  DType dtype = DType::bf16;
  Shape query;  // [B, H, Q, D], or anything
  Shape key;
  Shape value;
  bool has_mask = false;
  Shape mask;  // if there is one: [Q, K] or [B, H, Q, K], or anything
  bool mask_requires_grad = false;
  bool is_causal = false;
  double dropout = 0;
  bool enable_gqa = false;
  bool requires_grad = false;
  bool last_strides_are_one = true;  // of q, k and v, and of the mask if there is one
  bool starts_are_aligned = true;    // storage offsets, to 16 bytes for 16-bit dtypes
};

// The device and the switches of the process.
struct SdpaDevice {
  int sm = 89;             // compute capability: 75, 80, 86, 89, 90, 100, 120, ...
  int cuda = 13000;        // toolkit version
  int cudnn = 0;           // library version, such as 91600; 0: built without
  int cudnn_frontend = 0;  // such as 12400
  bool flash_is_enabled = true;
  bool efficient_is_enabled = true;
  bool cudnn_is_enabled = true;
  bool math_is_enabled = true;
  bool cudnn_is_deprioritized = false;  // TORCH_CUDNN_SDPA_DEPRIORITIZED
  bool is_deterministic = false;        // torch.use_deterministic_algorithms(True)
};

struct SdpaRejection {
  SdpaBackend backend;
  std::vector<std::string> reasons;  // one for each filter that fails, in PyTorch's order
};

struct SdpaChoice {
  std::optional<SdpaBackend> chosen;    // none: PyTorch raises "No available kernel"
  std::vector<SdpaBackend> order;       // as they are tried
  std::vector<SdpaRejection> rejected;  // those tried before the chosen one, in that order
};

// Emits an SdpaChoiceEvent.
SdpaChoice sdpa_choice(const SdpaCall& call, const SdpaDevice& device);

// What PyTorch does not say: which backend a call gets, and why it gets no faster one.
struct SdpaChoiceEvent {
  const SdpaCall& call;
  const SdpaDevice& device;
  const SdpaChoice& choice;
};

}  // namespace faultline::nn
