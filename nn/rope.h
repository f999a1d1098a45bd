#pragma once

#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/attributes.h"

namespace faultline::nn {

// How the angles of rotary positions are stretched beyond the trained length.
enum class RopeScaling : uint8_t { none, linear, dynamic_ntk, yarn, llama3 };

struct RopeConfig {
  double theta = 10000;
  RopeLayout layout = RopeLayout::half_split;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t original_positions = 0;    // length of the training; dynamic_ntk, yarn and llama3 need it
  double low_frequency_factor = 1;   // llama3
  double high_frequency_factor = 4;  // llama3
  double beta_fast = 32;             // yarn
  double beta_slow = 1;              // yarn
  double attention_factor = 0;       // yarn; 0: 0.1 ln(factor) + 1

  // Throws InvalidArgument naming the first impossible value.
  void check() const;
};

// Angle per position of each of the D / 2 pairs, in f64, for sequences of `length` positions
// (which only dynamic_ntk reads).
std::vector<double> rope_frequencies(const RopeConfig& config, int64_t head_size, int64_t length);
// What yarn multiplies cosines and sines with; else 1.
double rope_magnitude(const RopeConfig& config);

struct RopeTables {
  Tensor cosines;  // f32 [1 or B, T, D / 2]
  Tensor sines;
};

// Cosines and sines of the angles: taken in f64, stored in f32.
struct RopeTablesSeam {
  static constexpr const char* name = "rope tables";
  // positions i32 [T] or [B, T]; `length` as in rope_frequencies.
  using Signature = RopeTables(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                               int64_t length);
  static RopeTables standard(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                             int64_t length);
};

}  // namespace faultline::nn
