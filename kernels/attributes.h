#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"

// The attributes of each kernel that has any. A kernel and whoever launches it agree on these.
namespace faultline {

struct AffineAttributes {
  double scale = 1;
  double offset = 0;
};

struct DimAttributes {
  int64_t dim = 0;        // not negative
  int64_t full_size = 0;  // its size in the output of index_select_ and embedding_backward
};

// Reduction over the dimensions whose bit is set; reduced sizes are kept as 1 in the output view.
struct ReduceAttributes {
  uint32_t dims = 0;
};

struct SliceAttributes {
  int64_t dim = 0;
  int64_t begin = 0;      // first index taken
  int64_t length = 0;     // indices taken
  int64_t full_size = 0;  // of that dimension in the output of slice_backward
};

// Which keys a query may see. Query row i stands at position p = query_offset + i among the keys;
// it sees key k where
//   k < prefix  or  (k <= p, if causal)  and  (k > p - window, if window > 0,  or  k < sinks).
// Without `causal` a window reaches both ways: |k - p| < window. Optional inputs take away from
// that: key_valid bool [B, K] (false keys are seen by nobody), and documents i32 [B, K] (a query
// sees only keys of its own document; needs query positions inside the keys).
struct MaskAttributes {
  bool causal = true;
  int64_t query_offset = 0;
  double scale = 1;    // multiplies the scores first
  int64_t window = 0;  // keys that a query sees, itself included; 0: all
  int64_t prefix = 0;  // first keys that every query sees, also earlier ones
  int64_t sinks = 0;   // first keys that stay visible beyond the window
};

struct CrossEntropyAttributes {
  int64_t ignore_index = -1;
};

struct LayerNormAttributes {
  double epsilon = 1e-5;
};

// Element i of sequence b (the leading dimension) in the use `layer` is kept where
// philox(counter = (i, first_sequence + b, layer, step), key = seed) as a fraction is >= p. The
// words of the counter have 32 bits: sequence and step count modulo 2^32.
struct DropoutAttributes {
  double p = 0;
  uint32_t layer = 0;
};

struct RmsNormAttributes {
  double epsilon = 1e-6;
};

// Which elements of a head form a pair: i and i + D / 2 (Llama in the format of Hugging Face,
// GPT-NeoX), or 2 i and 2 i + 1 (the paper; Meta's Llama).
enum class RopeLayout : uint8_t { half_split, interleaved };

// By the angle, or by its negative, which is the inverse and the derivative.
enum class RopeTurn : uint8_t { forward, back };

struct RopeAttributes {
  RopeLayout layout = RopeLayout::half_split;
  RopeTurn turn = RopeTurn::forward;
};

struct FlashAttentionAttributes {
  MaskAttributes mask;
  double softcap = 0;         // 0: none; else scores become softcap * tanh(score / softcap)
  DropoutAttributes dropout;  // of the weights; element (h, q, k) of a sequence in row-major order
};

struct FillAttributes {
  double value = 0;
};

struct ArangeAttributes {
  double start = 0;
  double step = 1;
};

// Element i is `offset + scale * variate(i)` of RandomSequence(seed, stream).
struct RandomAttributes {
  uint64_t seed = 0;
  uint64_t stream = 0;
  double offset = 0;
  double scale = 1;
};

// ---- optimizer launches -------------------------------------------------------------------------
// A multi-tensor launch takes a table: a u8 view whose bytes are an array of one of these structs.
// The launch lists the memory behind the pointers as indirect ranges.

struct TensorSpan {
  float* data = nullptr;
  int64_t count = 0;
};

// The optimizer's tensors of one parameter. For sgd, `first` is the momentum (or null).
struct UpdateTensors {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* first = nullptr;   // adamw: mean of gradients
  float* second = nullptr;  // adamw: mean of their squares
  int64_t count = 0;
};

struct BiasCorrectionAttributes {
  double beta1 = 0.9;
  double beta2 = 0.999;
};

struct AdamwAttributes {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

struct SgdAttributes {
  double momentum = 0;
  double weight_decay = 0;  // coupled: added to the gradient, as in torch.optim.SGD
  bool nesterov = false;
};

struct ClipAttributes {
  double max_norm = 1;
};

}  // namespace faultline
