#include "nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "core/context.h"

namespace faultline::nn {
namespace {

bool needs_original_positions(RopeScaling scaling) {
  return scaling == RopeScaling::dynamic_ntk || scaling == RopeScaling::yarn ||
         scaling == RopeScaling::llama3;
}

void require_positive(double value, const char* key) {
  require(std::isfinite(value) && value > 0, "rope {}: must be positive, got {}", key, value);
}

void check_yarn(const RopeConfig& config) {
  require_positive(config.beta_slow, "beta_slow");
  require(std::isfinite(config.beta_fast) && config.beta_fast > config.beta_slow,
          "rope beta_fast: must be above beta_slow {}, got {}", config.beta_slow, config.beta_fast);
  require(std::isfinite(config.attention_factor) && config.attention_factor >= 0,
          "rope attention_factor: must be positive, or 0 for the usual one, got {}",
          config.attention_factor);
  require((config.mscale == 0) == (config.mscale_all_dim == 0),
          "rope mscale: {} and mscale_all_dim {}; set both or none", config.mscale,
          config.mscale_all_dim);
  require(config.mscale >= 0 && config.mscale_all_dim >= 0,
          "rope mscale: must not be negative, got {} and mscale_all_dim {}", config.mscale,
          config.mscale_all_dim);
}

void check_llama3(const RopeConfig& config) {
  require_positive(config.low_frequency_factor, "low_frequency_factor");
  require(std::isfinite(config.high_frequency_factor) &&
              config.high_frequency_factor > config.low_frequency_factor,
          "rope high_frequency_factor: must be above low_frequency_factor {}, got {}",
          config.low_frequency_factor, config.high_frequency_factor);
}

// theta^(-2 i / D) of pair i.
std::vector<double> plain_frequencies(double theta, int64_t head_size) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_size; i += 2) {
    frequencies.push_back(
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(head_size)));
  }
  return frequencies;
}

// The theta that makes the slowest pair turn over `length` positions as far as it did over the
// original ones, stretched by `factor`.
double dynamic_theta(const RopeConfig& config, int64_t head_size, int64_t length) {
  require(head_size > 2, "rope: dynamic_ntk needs a head size above 2, got {}", head_size);
  const auto original = static_cast<double>(config.original_positions);
  const double stretch = std::max(1.0, static_cast<double>(length) / original);
  const auto D = static_cast<double>(head_size);
  return config.theta * std::pow(config.factor * stretch - (config.factor - 1), D / (D - 2));
}

// The pair, not a whole one, that turns `turns` times within the original positions.
double pair_that_turns(double turns, const RopeConfig& config, int64_t head_size) {
  const double wavelength = static_cast<double>(config.original_positions) / turns;
  return static_cast<double>(head_size) * std::log(wavelength / (2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

// Up to the pair that turns beta_fast times a frequency is kept; from the one that turns beta_slow
// times it is divided; between them the share of the divided one grows evenly.
void stretch_yarn(const RopeConfig& config, int64_t head_size, std::vector<double>& frequencies) {
  double begin = pair_that_turns(config.beta_fast, config, head_size);
  double end = pair_that_turns(config.beta_slow, config, head_size);
  if (config.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, static_cast<double>(head_size - 1));
  if (begin == end) end += 0.001;  // a step, as transformers has it
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - begin) / (end - begin), 0.0, 1.0);
    frequencies[i] *= divided / config.factor + (1 - divided);
  }
}

// A pair that turns less than low_frequency_factor times within the original positions is divided;
// more than high_frequency_factor times, kept; between them the share kept grows evenly.
void stretch_llama3(const RopeConfig& config, std::vector<double>& frequencies) {
  const auto original = static_cast<double>(config.original_positions);
  const double low = config.low_frequency_factor;
  const double high = config.high_frequency_factor;
  for (double& frequency : frequencies) {
    const double turns = original * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequency *= (1 - kept) / config.factor + kept;
  }
}

}  // namespace

void RopeConfig::check() const {
  require(std::isfinite(theta) && theta > 1, "rope theta: must be above 1, got {}", theta);
  if (scaling == RopeScaling::none) return;
  require(std::isfinite(factor) && factor >= 1, "rope factor: must be at least 1, got {}", factor);
  require(!needs_original_positions(scaling) || original_positions > 0,
          "rope original_positions: this scaling needs the length of the training, got {}",
          original_positions);
  if (scaling == RopeScaling::yarn) check_yarn(*this);
  if (scaling == RopeScaling::llama3) check_llama3(*this);
}

std::vector<double> rope_frequencies(const RopeConfig& config, int64_t head_size, int64_t length) {
  config.check();
  require(head_size > 0 && head_size % 2 == 0,
          "rope: the elements of a head turn in pairs, so its size must be even, got {}",
          head_size);
  const bool is_dynamic = config.scaling == RopeScaling::dynamic_ntk;
  std::vector<double> frequencies = plain_frequencies(
      is_dynamic ? dynamic_theta(config, head_size, length) : config.theta, head_size);
  switch (config.scaling) {
    case RopeScaling::none:
    case RopeScaling::dynamic_ntk:
      break;
    case RopeScaling::linear:
      for (double& frequency : frequencies) frequency /= config.factor;
      break;
    case RopeScaling::yarn:
      stretch_yarn(config, head_size, frequencies);
      break;
    case RopeScaling::llama3:
      stretch_llama3(config, frequencies);
      break;
  }
  return frequencies;
}

double rope_magnitude(const RopeConfig& config) {
  if (config.scaling != RopeScaling::yarn) return 1;
  if (config.attention_factor != 0) return config.attention_factor;
  const auto grown = [&](double by) { return 0.1 * by * std::log(config.factor) + 1; };
  if (config.mscale != 0) return grown(config.mscale) / grown(config.mscale_all_dim);
  return grown(1);
}

RopeTables RopeTablesSeam::standard(const RopeConfig& config, int64_t head_size,
                                    const Tensor& positions, int64_t length) {
  require(positions.defined() && positions.dtype() == DType::i32 &&
              (positions.rank() == 1 || positions.rank() == 2),
          "rope: positions must be i32 [T] or [B, T], got {}", positions);
  const std::vector<double> frequencies = rope_frequencies(config, head_size, length);
  const double magnitude = rope_magnitude(config);
  std::vector<float> cosines;
  std::vector<float> sines;
  for (const int32_t position : positions.to_vector<int32_t>()) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      cosines.push_back(static_cast<float>(magnitude * std::cos(angle)));
      sines.push_back(static_cast<float>(magnitude * std::sin(angle)));
    }
  }
  const bool is_batch = positions.rank() == 2;
  const Shape shape{is_batch ? positions.size(0) : 1, positions.size(-1), head_size / 2};
  return {tensor(cosines, shape), tensor(sines, shape)};
}

RopeTables rope_tables(const RopeConfig& config, int64_t head_size, const Tensor& positions,
                       int64_t length) {
  const Context& context = Context::current();
  RopeTables tables = context.seams.call<RopeTablesSeam>(config, head_size, positions, length);
  context.events.emit(RopeTablesEvent{config, head_size, positions, length, tables});
  return tables;
}

Tensor RotarySeam::standard(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout) {
  return rope(x_BHTD, tables.cosines, tables.sines, layout);
}

Tensor rotary(const Tensor& x_BHTD, const RopeTables& tables, RopeLayout layout) {
  Tensor y_BHTD = Context::current().seams.call<RotarySeam>(x_BHTD, tables, layout);
  observe("rotary", {x_BHTD, tables.cosines, tables.sines, y_BHTD}, RopeAttributes{layout});
  return y_BHTD;
}

}  // namespace faultline::nn
