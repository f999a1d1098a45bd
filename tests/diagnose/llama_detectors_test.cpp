#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "autograd/observe.h"
#include "core/error.h"
#include "core/float16.h"
#include "nn/attention.h"
#include "nn/rope.h"
#include "nn/varlen.h"
#include "tests/diagnose/watched.h"

// The detectors that look at rotary positions, at a cache in training, and at lengths and pages.
// All detectors watch.
namespace faultline::diagnose {
namespace {

using nn::RopeConfig;
using nn::RopeScaling;
using nn::RopeTables;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- rope.angles --------------------------------------------------------------------------------

using Angle = double (*)(double position, double frequency);

// What is said of tables whose angles are computed by `angle`.
std::vector<std::string> turned_by(Angle angle, int64_t positions, RopeConfig config = {}) {
  return names_of(watched([&](Context& context) {
    const auto seam = context.seams.replace<nn::RopeTablesSeam>(
        [&](const RopeConfig& asked, int64_t head_size, const Tensor& at, int64_t length) {
          std::vector<float> cosines, sines;
          for (const int32_t position : at.to_vector<int32_t>()) {
            for (const double frequency : nn::rope_frequencies(asked, head_size, length)) {
              const double x = angle(position, frequency);
              cosines.push_back(static_cast<float>(nn::rope_magnitude(asked) * std::cos(x)));
              sines.push_back(static_cast<float>(nn::rope_magnitude(asked) * std::sin(x)));
            }
          }
          const Shape shape{1, at.size(-1), head_size / 2};
          return RopeTables{tensor(cosines, shape), tensor(sines, shape)};
        });
    nn::rope_tables(config, 16, arange(positions, 0, 1, DType::i32), positions);
  }));
}

double in_bf16(double x) { return static_cast<float>(bfloat16(static_cast<float>(x))); }

TEST(RopeAngles, AreSilentOnExactOnesUnderEveryScaling) {
  for (const RopeScaling scaling :
       {RopeScaling::none, RopeScaling::linear, RopeScaling::dynamic_ntk, RopeScaling::yarn,
        RopeScaling::llama3}) {
    const RopeConfig config{.scaling = scaling, .factor = 4, .original_positions = 64};
    EXPECT_THAT(names_of(watched([&](Context&) {
                  nn::rope_tables(config, 16, arange(300, 0, 1, DType::i32), 300);
                })),
                IsEmpty());
  }
}

// Most programs compute in f32; at 100,000 positions their cosines are off by some 1e-2.
TEST(RopeAngles, AreSilentOnAnglesInF32) {
  const auto in_f32 = [](double position, double frequency) {
    return static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency));
  };
  EXPECT_THAT(turned_by(in_f32, 100000), IsEmpty());
}

TEST(RopeAngles, NameBf16WhateverOfTheAngleWasRounded) {
  const auto bf16 = ElementsAre("rope.angles -> rope.bf16");
  EXPECT_THAT(turned_by([](double p, double f) { return in_bf16(p) * f; }, 300), bf16);
  EXPECT_THAT(turned_by([](double p, double f) { return p * in_bf16(f); }, 8), bf16);
  EXPECT_THAT(turned_by([](double p, double f) { return in_bf16(p * f); }, 8), bf16);
  EXPECT_THAT(turned_by([](double p, double f) { return in_bf16(in_bf16(p) * in_bf16(f)); }, 8),
              bf16);
  // Up to position 256 a position is a bf16 number.
  EXPECT_THAT(turned_by([](double p, double f) { return in_bf16(p) * f; }, 257), IsEmpty());
}

TEST(RopeAngles, NameNoCauseForOtherErrors) {
  const auto unknown = ElementsAre("rope.angles -> ");
  EXPECT_THAT(turned_by([](double p, double f) { return (p + 1) * f; }, 32), unknown);
  EXPECT_THAT(turned_by([](double p, double f) { return p * f * 1.001; }, 32), unknown);
  EXPECT_THAT(turned_by([](double p, double) { return p; }, 32), unknown);
  EXPECT_THAT(
      turned_by([](double, double) { return std::numeric_limits<double>::quiet_NaN(); }, 32),
      unknown);
}

// ---- rope.layout --------------------------------------------------------------------------------

// What is said when `turn` turns random vectors of weights in this layout.
std::vector<std::string> rotated(RopeLayout layout,
                                 const std::function<nn::RotarySeam::Signature>& turn,
                                 int64_t first = 0, int64_t positions = 6) {
  return names_of(watched([&](Context& context) {
    const auto seam = context.seams.replace<nn::RotarySeam>(turn);
    const Tensor at = arange(positions, static_cast<double>(first), 1, DType::i32);
    const RopeTables tables = nn::rope_tables({}, 8, at, first + positions);
    nn::rotary(normal({2, 3, positions, 8}, 0, 1, 1, stream_of("x")), tables, layout);
  }));
}

Tensor swapped(const Tensor& x, const RopeTables& tables, RopeLayout layout) {
  const bool halves = layout == RopeLayout::half_split;
  return nn::RotarySeam::standard(x, tables,
                                  halves ? RopeLayout::interleaved : RopeLayout::half_split);
}

TEST(RopeLayoutDetector, NamesTheOtherLayoutAndIsSilentOnTheOneAskedFor) {
  for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
    EXPECT_THAT(rotated(layout, &nn::RotarySeam::standard), IsEmpty());
    EXPECT_THAT(rotated(layout, &swapped), ElementsAre("rope.layout -> rope.layout"));
  }
}

TEST(RopeLayoutDetector, IsSilentAtPositionZeroAndOnElementsInAnotherOrder) {
  EXPECT_THAT(rotated(RopeLayout::half_split, &swapped, 0, 1), IsEmpty());
  const auto reversed = [](const Tensor& x, const RopeTables& tables, RopeLayout layout) {
    const Tensor y = nn::RotarySeam::standard(x, tables, layout);
    return cat(std::vector<Tensor>{slice(y, 3, 4, 8), slice(y, 3, 0, 4)}, 3);
  };
  EXPECT_THAT(rotated(RopeLayout::half_split, reversed), IsEmpty());
}

TEST(RopeLayoutDetector, NamesNoCauseForOtherErrors) {
  const auto twice = [](const Tensor& x, const RopeTables& tables, RopeLayout layout) {
    return nn::RotarySeam::standard(nn::RotarySeam::standard(x, tables, layout), tables, layout);
  };
  EXPECT_THAT(rotated(RopeLayout::interleaved, twice), ElementsAre("rope.layout -> "));
}

// ---- cache.length -------------------------------------------------------------------------------

Batch rows_of(int64_t tokens) {
  Batch batch;
  batch.inputs = zeros({2, tokens}, DType::i32);
  batch.labels = zeros({2, tokens}, DType::i32);
  batch.valid_tokens = 2 * tokens;
  return batch;
}

// The last 4 of `keys` positions attend to all of them, as with a cache.
void attend_to(int64_t keys, nn::AttentionImplementation which) {
  const Tensor q = normal({2, 1, 4, 4}, 0, 1, 1, 1);
  const Tensor k = normal({2, 1, keys, 4}, 0, 1, 1, 2);
  const NoGrad off;
  nn::attention(q, k, k, {.query_offset = keys - 4},
                {.policy = nn::AttentionPolicy::require(which)});
}

// Micro-batches of 4 tokens that attend to so many keys.
std::vector<std::string> micro_batches(const std::vector<int64_t>& keys) {
  std::vector<std::vector<std::string>> said;
  for (const auto which : {nn::AttentionImplementation::math, nn::AttentionImplementation::flash}) {
    said.push_back(names_of(watched([&](Context& context) {
      const Batch batch = rows_of(4);
      for (const int64_t count : keys) {
        context.events.emit(train::BatchEvent{1, batch});
        attend_to(count, which);
        context.events.emit(train::ObjectiveEvent{1, 8, 8.0, zeros({1})});
      }
    })));
  }
  EXPECT_EQ(said[0], said[1]);
  return said[0];
}

TEST(CacheLength, NamesACacheThatAMicroBatchLeavesToTheNext) {
  const auto named = ElementsAre("cache.length -> kv.micro-batch");
  EXPECT_THAT(micro_batches({4, 8}), named);
  EXPECT_THAT(micro_batches({4, 4, 8, 12}), named);
}

TEST(CacheLength, IsSilentOnOneCacheEachAndOnAPrefixOfAllMicroBatches) {
  EXPECT_THAT(micro_batches({4, 4, 4}), IsEmpty());
  EXPECT_THAT(micro_batches({7, 7, 7}), IsEmpty());
}

TEST(CacheLength, IsSilentInEvaluationAndInTheBackwardPass) {
  EXPECT_THAT(names_of(watched([&](Context& context) {
                const Batch batch = rows_of(4);
                context.events.emit(train::BatchEvent{1, batch});
                attend_to(4, nn::AttentionImplementation::math);
                context.events.emit(train::ObjectiveEvent{1, 8, 8.0, zeros({1})});
                attend_to(8, nn::AttentionImplementation::math);
                context.events.emit(train::BatchEvent{1, batch});
                context.events.emit(train::EvaluationBeginEvent{1});
                attend_to(8, nn::AttentionImplementation::math);
                context.events.emit(train::EvaluationEndEvent{1});
              })),
              IsEmpty());
}

// ---- attention.lengths --------------------------------------------------------------------------

Tensor ends(const std::vector<int32_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

// Attention of 6 queries and as many keys over texts with these ends; an error is expected where
// attention_varlen sees that they are wrong. In a micro-batch of two rows, if `documents` are
// given.
std::vector<std::string> varlen(const std::vector<int32_t>& ends_q,
                                const std::vector<int32_t>& ends_k,
                                const std::vector<int32_t>& documents = {},
                                nn::SequenceMask mask = {.align = nn::CausalAlign::bottom_right}) {
  return names_of(watched([&](Context& context) {
    Batch batch = rows_of(3);
    if (!documents.empty()) {
      batch.documents = tensor(documents, {2, 3});
      context.events.emit(train::BatchEvent{1, batch});
    }
    const Tensor q = normal({6, 1, 4}, 0, 1, 1, 1);
    try {
      nn::attention_varlen(q, q, q, {ends(ends_q), ends(ends_k)}, mask);
    } catch (const InvalidArgument&) {
    }
  }));
}

const auto kOverrun = ElementsAre("attention.lengths -> varlen.overrun");

TEST(AttentionLengths, AreSilentOnTextsOfAnyLength) {
  EXPECT_THAT(varlen({0, 3, 6}, {0, 3, 6}, {0, 0, 0, 0, 0, 0}), IsEmpty());
  EXPECT_THAT(varlen({0, 1, 3, 5, 6}, {0, 1, 3, 5, 6}, {0, 1, 1, 0, 0, 1}), IsEmpty());
  EXPECT_THAT(varlen({0, 2, 2, 6}, {0, 2, 2, 6}), IsEmpty());
}

TEST(AttentionLengths, NameEndsThatLeaveTheTensor) {
  EXPECT_THAT(varlen({0, 3, 6}, {0, 3, 7}), kOverrun);
  EXPECT_THAT(varlen({0, 3, 5}, {0, 3, 6}), kOverrun);
  EXPECT_THAT(varlen({1, 3, 6}, {0, 3, 6}), kOverrun);
  EXPECT_THAT(varlen({0, 3, 6}, {0, 7, 6}), kOverrun);
}

TEST(AttentionLengths, NameEndsThatReachIntoAnotherText) {
  EXPECT_THAT(varlen({0, 3, 6}, {0, 4, 6}, {0, 0, 0, 0, 0, 0}), kOverrun);
  EXPECT_THAT(varlen({0, 6}, {0, 6}, {0, 0, 0, 0, 0, 0}), kOverrun) << "two rows as one text";
  EXPECT_THAT(varlen({0, 3, 6}, {0, 3, 6}, {0, 0, 1, 0, 0, 0}), kOverrun);
  EXPECT_THAT(varlen({0, 3, 6}, {0, 4, 6}), kOverrun) << "without a micro-batch";
}

TEST(AttentionLengths, AreSilentOnOtherTextsAsKeys) {
  EXPECT_THAT(varlen({0, 3, 6}, {0, 4, 6}, {}, {.causal = false}), IsEmpty());
}

// Attention of one new position of each row over pages of two slots, in a pool of 6.
std::vector<std::string> paged(const std::vector<int32_t>& table,
                               const std::vector<int32_t>& lengths,
                               nn::PageSharing sharing = nn::PageSharing::refused) {
  return names_of(watched([&](Context&) {
    const auto rows = static_cast<int64_t>(lengths.size());
    const Tensor pool = normal({6, 2, 1, 4}, 0, 1, 1, 1);
    const nn::PagedKeys keys{pool, pool,
                             tensor(table, {rows, static_cast<int64_t>(table.size()) / rows}),
                             ends(lengths), sharing};
    try {
      nn::attention_paged(normal({rows, 1, 1, 4}, 0, 1, 1, 2), keys);
    } catch (const InvalidArgument&) {
    }
  }));
}

TEST(AttentionLengths, AreSilentOnRowsWithinTheirPages) {
  EXPECT_THAT(paged({5, 1, 2, 3}, {4, 3}), IsEmpty());
  EXPECT_THAT(paged({5, 1, 2, 99}, {0, 1}), IsEmpty()) << "entries that nobody reads";
  EXPECT_THAT(paged({5, 1, 5, 3}, {4, 3}, nn::PageSharing::allowed), IsEmpty());
}

TEST(AttentionLengths, NameRowsBeyondTheirPagesAndPagesOutsideOfThePool) {
  EXPECT_THAT(paged({5, 1, 2, 3}, {5, 3}), kOverrun);
  EXPECT_THAT(paged({5, 6, 2, 3}, {4, 3}), kOverrun);
  EXPECT_THAT(paged({5, -1, 2, 3}, {4, 3}), kOverrun);
}

}  // namespace
}  // namespace faultline::diagnose
