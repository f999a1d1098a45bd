#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "kernels/attributes.h"

// Rotary positions (Su et al., "RoFormer", 2021). Shapes: B batch, T positions, D head size.
namespace faultline::nn {

// How the angles of rotary positions are stretched beyond the trained length.
enum class RopeScaling : uint8_t {
  none,
  linear,       // positions divided by `factor` (Chen et al. 2023)
  dynamic_ntk,  // a theta that grows with the length, beyond original_positions
  yarn,         // slow pairs divided by `factor`, fast ones kept, a ramp between (Peng et al. 2023)
  llama3,       // the same with another ramp (Llama team 2024)
};

struct RopeConfig {
  double theta = 10000;
  RopeLayout layout = RopeLayout::half_split;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t original_positions = 0;    // length of the training; dynamic_ntk, yarn and llama3 need it
  double low_frequency_factor = 1;   // llama3
  double high_frequency_factor = 4;  // llama3
  double beta_fast = 32;             // yarn: turns within the training of the last pair kept
  double beta_slow = 1;              // yarn: turns of the first pair divided by the factor
  double attention_factor = 0;       // yarn; 0: 0.1 ln(factor) + 1, or from the next two
  double mscale = 0;                 // yarn; both or none: (0.1 mscale ln(factor) + 1) over
  double mscale_all_dim = 0;         // yarn; the same with mscale_all_dim
  bool truncate = true;              // yarn: the ramp begins and ends at whole pairs

  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

// Angle per position of each of the D / 2 pairs, in f64, for sequences of `length` positions
// (which only dynamic_ntk reads). The formulas are those of Hugging Face's transformers. Throws
// InvalidArgument as check() does, or when head_size is not even and positive.
std::vector<double> rope_frequencies(const RopeConfig& config, int64_t head_size, int64_t length);
// What yarn multiplies cosines and sines with, so that scores grow by its square; else 1.
double rope_magnitude(const RopeConfig& config);

struct RopeTables {
  Tensor cosines;  // f32 [1 or B, T, D / 2]
  Tensor sines;
};

// Cosines and sines of the angles: taken in f64, stored in f32. An angle in f32 would be off by up
// to a position's half ulp, and one in bf16 would know no odd position beyond 256.
struct RopeTablesSeam {
  static constexpr const char* name = "rope tables";
  // positions i32 [T] or [B, T]; `length` as in rope_frequencies. Synchronises.
  using Signature = RopeTables(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                               int64_t length);
  static RopeTables standard(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                             int64_t length);
};

// What a model turns its queries and keys by, for observers.
struct RopeTablesEvent {
  const RopeConfig& config;
  int64_t head_size;
  const Tensor& positions;
  int64_t length;
  const RopeTables& tables;
};

// The tables of RopeTablesSeam, announced as a RopeTablesEvent.
RopeTables rope_tables(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                       int64_t length);

// How queries and keys [B, H, T, D] are turned; `layout` is that of the weights which made them.
struct RotarySeam {
  static constexpr const char* name = "rotary";
  using Signature = Tensor(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout);
  static Tensor standard(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout);
};

// x [B, H, T, D] turned by RotarySeam. Shows observers the launch "rotary" with inputs x, cosines,
// sines and the result, and RopeAttributes of the layout that was asked for.
Tensor rotary(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout);

}  // namespace faultline::nn
