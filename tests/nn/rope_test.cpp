#include "nn/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numbers>
#include <string>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/error.h"
#include "io/safetensors.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

constexpr double kHalfUlp = 0x1p-24;  // the most that rounding to f32 changes a number, relatively

// ---- frequencies --------------------------------------------------------------------------------

struct Scaling {
  const char* name;  // in the golden
  int64_t head_size;
  int64_t length;
  RopeConfig config;
};

const Scaling kScalings[] = {
    {"llama2", 128, 4096, {}},
    {"vicuna_16k", 128, 16384, {.scaling = RopeScaling::linear, .factor = 4}},
    {"dynamic_within",
     64,
     2048,
     {.scaling = RopeScaling::dynamic_ntk, .factor = 2, .original_positions = 2048}},
    {"dynamic_beyond",
     64,
     6000,
     {.scaling = RopeScaling::dynamic_ntk, .factor = 2, .original_positions = 2048}},
    {"llama3_1",
     128,
     131072,
     {.theta = 500000,
      .scaling = RopeScaling::llama3,
      .factor = 8,
      .original_positions = 8192,
      .low_frequency_factor = 1,
      .high_frequency_factor = 4}},
    {"yarn_64k",
     128,
     65536,
     {.scaling = RopeScaling::yarn, .factor = 16, .original_positions = 4096}},
    {"yarn_untruncated",
     64,
     131072,
     {.theta = 150000,
      .scaling = RopeScaling::yarn,
      .factor = 32,
      .original_positions = 4096,
      .truncate = false}},
    {"yarn_mscale",
     64,
     163840,
     {.scaling = RopeScaling::yarn,
      .factor = 40,
      .original_positions = 4096,
      .mscale = 1,
      .mscale_all_dim = 0.7}},
};

// transformers computes in f32: theta^x is off by ln(theta) roundings of x <= 1 and a few of its
// own, and where a ramp leaves 1 / factor of a frequency, its rounding weighs `factor` times.
TEST(RopeFrequencies, AreThoseOfTransformers) {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  const Safetensors golden = read_safetensors(std::string(root != nullptr ? root : ".") +
                                              "/tests/golden/llama_golden.safetensors");
  for (const Scaling& scaling : kScalings) {
    SCOPED_TRACE(scaling.name);
    const std::string name = scaling.name;
    const RopeConfig& config = scaling.config;
    const double roundings = 2 * config.factor * (std::log(config.theta) + 8);
    EXPECT_TRUE(test::close(rope_frequencies(config, scaling.head_size, scaling.length),
                            golden.tensors.at(name + ".frequencies").to_vector<double>(),
                            {.relative = roundings * kHalfUlp}));
    const double magnitude = golden.tensors.at(name + ".magnitude").item<double>();
    EXPECT_NEAR(rope_magnitude(config), magnitude, 1e-15 * magnitude);
  }
}

// theta 16 and four elements: 1 and 1/4. Twice the original length at factor 2 makes it
// 16 (2 x 2 - 1)^(4 / 2) = 144: 1 and 1/12.
TEST(RopeFrequencies, OfDynamicNtkFollowTheLength) {
  const RopeConfig config{
      .theta = 16, .scaling = RopeScaling::dynamic_ntk, .factor = 2, .original_positions = 10};
  const test::Tolerance rounding{.relative = 1e-15};
  EXPECT_TRUE(test::close(rope_frequencies(config, 4, 7), {1, 0.25}, rounding));
  EXPECT_TRUE(test::close(rope_frequencies(config, 4, 10), {1, 0.25}, rounding));
  EXPECT_TRUE(test::close(rope_frequencies(config, 4, 20), {1, 1.0 / 12}, rounding));
}

void expect_refusal(const RopeConfig& config, const std::string& key) {
  try {
    config.check();
    ADD_FAILURE() << "no error about " << key;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  }
}

TEST(RopeConfig, RefusesWhatCannotBeNamingTheKey) {
  expect_refusal({.theta = 1}, "theta");
  expect_refusal({.theta = std::nan("")}, "theta");
  expect_refusal({.scaling = RopeScaling::linear, .factor = 0.5}, "factor");
  expect_refusal({.scaling = RopeScaling::dynamic_ntk, .factor = 2}, "original_positions");
  const RopeConfig yarn{.scaling = RopeScaling::yarn, .factor = 2, .original_positions = 64};
  yarn.check();
  RopeConfig wrong = yarn;
  wrong.beta_fast = wrong.beta_slow;
  expect_refusal(wrong, "beta_fast");
  wrong = yarn;
  wrong.mscale = 1;
  expect_refusal(wrong, "mscale_all_dim");
  wrong = yarn;
  wrong.attention_factor = -1;
  expect_refusal(wrong, "attention_factor");
  wrong = yarn;
  wrong.scaling = RopeScaling::llama3;
  wrong.low_frequency_factor = 4;
  expect_refusal(wrong, "high_frequency_factor");
  EXPECT_THROW(rope_frequencies({}, 7, 16), InvalidArgument);
  RopeConfig dynamic = yarn;
  dynamic.scaling = RopeScaling::dynamic_ntk;
  EXPECT_THROW(rope_frequencies(dynamic, 2, 16), InvalidArgument);
}

// ---- tables -------------------------------------------------------------------------------------

RopeTables tables_at(const RopeConfig& config, int64_t head_size, std::vector<int32_t> positions) {
  const auto count = static_cast<int64_t>(positions.size());
  return RopeTablesSeam::standard(config, head_size, tensor(positions, {count}), count);
}

// In bf16 both positions would be 256.
TEST(RopeTables, KnowOddPositionsBeyond256) {
  const auto cosines = tables_at({}, 2, {256, 257}).cosines.to_vector<float>();
  EXPECT_NEAR(cosines[0], -0.039791, 1e-6);
  EXPECT_NEAR(cosines[1], 0.819306, 1e-6);
}

// The angle is exact to f64, so what is left is the rounding of the table; an f32 angle of 100,000
// would be off by up to 0.004.
TEST(RopeTables, AreRoundedOnceAtEveryPosition) {
  const std::vector<int32_t> positions{0, 1, 2047, 4097, 100'000, 1'000'001, -3};
  const RopeTables tables = tables_at({}, 32, positions);
  std::vector<double> cosines;
  std::vector<double> sines;
  for (const int32_t position : positions) {
    for (int i = 0; i < 16; ++i) {
      const long double angle = position * std::pow(10000.0L, -i / 16.0L);
      cosines.push_back(static_cast<double>(std::cos(angle)));
      sines.push_back(static_cast<double>(std::sin(angle)));
    }
  }
  // Beside the half ulp: the angle's own rounding, 1e6 x 2^-53.
  const test::Tolerance rounding{.absolute = 1e6 * 0x1p-52, .relative = kHalfUlp};
  EXPECT_TRUE(test::close(tables.cosines.to_vector<double>(), cosines, rounding));
  EXPECT_TRUE(test::close(tables.sines.to_vector<double>(), sines, rounding));
}

TEST(RopeTables, OfABatchHaveARowForEachSequence) {
  const Tensor positions = tensor(std::vector<int32_t>{0, 1, 2, 5, 0, 1}, {2, 3});
  const RopeTables tables = RopeTablesSeam::standard({}, 8, positions, 6);
  EXPECT_EQ(tables.cosines.shape(), (Shape{2, 3, 4}));
  EXPECT_TRUE(test::same_bits(slice(tables.sines, 0, 1, 2), tables_at({}, 8, {5, 0, 1}).sines));
  EXPECT_THROW(RopeTablesSeam::standard({}, 8, zeros({3}, DType::i64), 3), InvalidArgument);
  EXPECT_THROW(RopeTablesSeam::standard({}, 8, Tensor(), 3), InvalidArgument);
}

TEST(RopeTables, AreMultipliedByTheMagnitudeOfYarn) {
  RopeConfig config{.scaling = RopeScaling::yarn, .factor = 4, .original_positions = 64};
  EXPECT_FLOAT_EQ(tables_at(config, 8, {0}).cosines.to_vector<float>()[0],
                  static_cast<float>(0.1 * std::log(4.0) + 1));
  config.attention_factor = 0.5;
  EXPECT_FLOAT_EQ(tables_at(config, 8, {0}).cosines.to_vector<float>()[0], 0.5F);
}

// ---- what they are for --------------------------------------------------------------------------

// Scores of T queries and keys that begin at position `first`: [T, T].
std::vector<double> scores(const RopeConfig& config, const Tensor& q, const Tensor& k,
                           int32_t first) {
  const int64_t T = q.size(2);
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < T; ++t) positions.push_back(first + t);
  const RopeTables tables = tables_at(config, q.size(3), positions);
  const auto turned = [&](const Tensor& x) {
    return rope(x, tables.cosines, tables.sines, config.layout);
  };
  return matmul(turned(q), transpose(turned(k), 2, 3)).to_vector<double>();
}

TEST(Rope, ScoresKnowOnlyHowFarApartTwoPositionsAre) {
  const Tensor q = normal({1, 1, 9, 32}, 0, 1, 1, 1);
  const Tensor k = normal({1, 1, 9, 32}, 0, 1, 1, 2);
  // Each of 32 terms |q k| is about 1 and carries the rounding of two cosines, of two turns (two
  // products and a sum each) and of the product: 32 x 12 half ulps, were they all of one sign.
  const test::Tolerance rounding{.absolute = 32 * 12 * kHalfUlp};
  for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
    for (const Scaling& scaling : kScalings) {
      if (scaling.config.scaling == RopeScaling::dynamic_ntk) continue;  // knows the length too
      SCOPED_TRACE(scaling.name);
      RopeConfig config = scaling.config;
      config.layout = layout;
      const std::vector<double> expected = scores(config, q, k, 0);
      for (const int32_t shift : {1, 257, 5000, 100'000}) {
        EXPECT_TRUE(test::close(scores(config, q, k, shift), expected, rounding)) << shift;
      }
    }
  }
}

// Weights made for one layout and run with the other give other scores, but for equal positions.
TEST(Rope, TheLayoutsAgreeOnEqualPositionsOnly) {
  const Tensor q = normal({1, 1, 3, 4}, 0, 1, 1, 3);
  const Tensor k = normal({1, 1, 3, 4}, 0, 1, 1, 4);
  const auto halves = scores({.theta = 16}, q, k, 0);
  const auto neighbours = scores({.theta = 16, .layout = RopeLayout::interleaved}, q, k, 0);
  for (size_t i = 0; i < halves.size(); ++i) {
    const bool same_position = i % 4 == 0;  // the diagonal of 3 x 3
    const double difference = std::abs(halves[i] - neighbours[i]);
    if (same_position) {
      EXPECT_LE(difference, 4 * 12 * kHalfUlp) << i;
    } else {
      EXPECT_GT(difference, 1e-3) << i;
    }
  }
}

}  // namespace
}  // namespace faultline::nn
