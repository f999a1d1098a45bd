#include "nn/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/functional.h"
#include "nn/attention.h"
#include "nn/gpt2.h"
#include "tests/io/scratch_directory.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

using testing::HasSubstr;
using Implementation = AttentionImplementation;

constexpr auto kMath = Implementation::math;
constexpr auto kFlash = Implementation::flash;

// The records of what `action` runs.
template <class Action>
std::vector<DispatchRecord> records_of(Action&& action) {
  std::vector<DispatchRecord> records;
  const auto subscription = Context::current().events.subscribe<DispatchEvent>(
      [&](const DispatchEvent& event) { records.push_back(event.record); });
  action();
  return records;
}

AttentionCall call_of(const Mask& mask, DType dtype = DType::f32) {
  return {.dtype = dtype,
          .q_BHQD = {2, 4, 8, 16},
          .k_BGKD = {2, 2, 8, 16},
          .v_BGKE = {2, 2, 8, 16},
          .mask = mask};
}

// Everything that flash does not take, with a part of its reason.
struct Refused {
  AttentionCall call;
  const char* reason;
};
std::vector<Refused> refused_by_flash(const Mask& plain, const Mask& keep, const Mask& bias) {
  std::vector<Refused> all{
      {call_of(plain, DType::f64), "got f64"}, {call_of(keep), "keep tensor"},
      {call_of(bias), "bias tensor"},          {call_of(plain), "'attention weights' is replaced"},
      {call_of(plain), "one head size"},       {call_of(plain), "nothing to tile"}};
  all[3].call.weights_are_replaced = true;
  all[4].call.v_BGKE = {2, 2, 8, 12};
  all[5].call.k_BGKD = all[5].call.v_BGKE = {2, 2, 0, 16};
  return all;
}

TEST(Dispatch, TakesWhatThePolicyAsksWhereNothingRefuses) {
  const Mask mask;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const AttentionCall call = call_of(mask, dtype);
    for (const Implementation which : {kMath, kFlash}) {
      const Implementation other = which == kMath ? kFlash : kMath;
      EXPECT_EQ(choose(call, AttentionPolicy::prefer(which)), which);
      EXPECT_EQ(choose(call, AttentionPolicy::require(which)), which);
      EXPECT_EQ(choose(call, AttentionPolicy::forbid(which)), other);
    }
  }
}

TEST(Dispatch, ARefusalRoutesAndWordsTheErrorAlike) {
  const Mask plain;
  const Mask keep{.keep = ones({2, 4, 8, 8}, DType::boolean)};
  const Mask bias{.bias = ones({2, 4, 8, 8})};
  for (const Refused& refused : refused_by_flash(plain, keep, bias)) {
    const AttentionCall& call = refused.call;
    EXPECT_EQ(choose(call, {}), kMath) << refused.reason;
    const auto records =
        records_of([&] { EXPECT_EQ(choose(call, AttentionPolicy::prefer(kFlash)), kMath); });
    ASSERT_EQ(records.size(), 1U);
    ASSERT_EQ(records[0].rejected.size(), 1U);
    EXPECT_EQ(records[0].rejected[0].which, kFlash);
    const std::string recorded = records[0].rejected[0].reason;
    EXPECT_THAT(recorded, HasSubstr(refused.reason));
    const std::string error =
        error_of<InvalidArgument>([&] { choose(call, AttentionPolicy::require(kFlash)); });
    EXPECT_THAT(error, HasSubstr("'require flash'"));
    EXPECT_THAT(error, HasSubstr(recorded));
    const std::string forbidden =
        error_of<InvalidArgument>([&] { choose(call, AttentionPolicy::forbid(kMath)); });
    EXPECT_THAT(forbidden, HasSubstr(recorded));
    EXPECT_THAT(forbidden, HasSubstr("math: the policy is forbid math"));
  }
}

TEST(Dispatch, ARecordSaysWhatWasAskedAndWhatRan) {
  const Mask mask{.key_valid = zeros({2, 8}, DType::boolean)};
  const auto records = records_of([&] {
    choose(call_of(mask, DType::bf16), AttentionPolicy::require(kMath));
    choose(call_of(mask), {});
  });
  ASSERT_EQ(records.size(), 2U);
  const DispatchRecord& first = records[0];
  EXPECT_EQ(first.dtype, DType::bf16);
  EXPECT_EQ(first.q_BHQD, (Shape{2, 4, 8, 16}));
  EXPECT_EQ(first.mask, "causal, padding");
  EXPECT_EQ(to_string(first.requested), "require math");
  EXPECT_EQ(first.chosen, kMath);
  EXPECT_EQ(first.reason, "required");
  ASSERT_EQ(first.rejected.size(), 1U);
  EXPECT_EQ(first.rejected[0].reason, "the policy is require math");
  EXPECT_EQ(first.rows_without_keys, 2 * 4 * 8);
  EXPECT_EQ(to_string(records[1].requested), "auto");
  EXPECT_EQ(records[1].chosen, kFlash);
  EXPECT_EQ(records[1].reason, "tried first");
  EXPECT_THAT(records[1].rejected[0].reason, HasSubstr("is tried first"));
}

TEST(Dispatch, TheSeamGivesThePolicyAndACallMayBringItsOwn) {
  const Tensor x = normal({1, 2, 4, 8}, 0, 1, 1, 1);
  const auto policy = Context::current().seams.replace<AttentionPolicySeam>(
      [] { return AttentionPolicy::forbid(kFlash); });
  const auto records = records_of([&] {
    attention(x, x, x, {});
    attention(x, x, x, {}, {.policy = AttentionPolicy::require(kMath)});
  });
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(to_string(records[0].requested), "forbid flash");
  EXPECT_EQ(to_string(records[1].requested), "require math");
}

TEST(Dispatch, AReplacedSoftmaxIsNeverPassedBy) {
  const Tensor x = normal({1, 2, 4, 8}, 0, 1, 1, 1);
  int asked = 0;
  const auto replaced = Context::current().seams.replace<AttentionWeightsSeam>(
      [&](const Tensor& scores, const Mask& mask, double scale) {
        ++asked;
        return AttentionWeightsSeam::standard(scores, mask, scale);
      });
  attention(x, x, x, {});
  attention(x, x, x, {}, {.policy = AttentionPolicy::prefer(kFlash)});
  EXPECT_EQ(asked, 2);
  EXPECT_THAT(error_of<InvalidArgument>(
                  [&] { attention(x, x, x, {}, {.policy = AttentionPolicy::require(kFlash)}); }),
              HasSubstr("replaced"));
}

TEST(Dispatch, ListeningChangesNoBit) {
  const Gpt2Config config{
      .vocab_size = 16, .seq_len = 8, .num_layers = 2, .num_heads = 2, .hidden_size = 16};
  Gpt2 model(config, 1);
  const Tensor tokens = tensor<int32_t>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 8});
  const Tensor alone = model(tokens, {});
  Tensor watched;
  const auto records = records_of([&] { watched = model(tokens, {}); });
  EXPECT_TRUE(test::same_bits(alone, watched));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_STREQ(records[1].module, "h.1.attn");
}

TEST(Dispatch, NamesOfPolicies) {
  EXPECT_EQ(to_string(attention_policy_from_name("auto")), "auto");
  EXPECT_EQ(to_string(attention_policy_from_name("math")), "require math");
  EXPECT_EQ(to_string(attention_policy_from_name("flash")), "require flash");
  for (const char* name : {"prefer flash", "require math", "forbid flash"}) {
    EXPECT_EQ(to_string(attention_policy_from_name(name)), name);
  }
  EXPECT_THAT(
      error_of<InvalidArgument>([] { attention_policy_from_name("fast"); }),
      HasSubstr("must be auto, math or flash, or prefer, require or forbid one of these, got "
                "'fast'"));
}

}  // namespace
}  // namespace faultline::nn
