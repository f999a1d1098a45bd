#include "nn/sdpa_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace faultline::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using enum SdpaBackend;

Shape heads(int64_t count, int64_t positions, int64_t size) { return {2, count, positions, size}; }

// Self-attention of 8 heads over 64 positions.
SdpaCall call(DType dtype, int64_t head_size) {
  const Shape shape = heads(8, 64, head_size);
  return {.dtype = dtype, .query = shape, .key = shape, .value = shape};
}

template <class Change>
SdpaCall changed(SdpaCall call, Change&& change) {
  change(call);
  return call;
}

SdpaCall masked(SdpaCall call) {
  call.has_mask = true;
  call.mask = {64, 64};
  return call;
}

SdpaBackend chosen(const SdpaCall& call, const SdpaDevice& device = {}) {
  return sdpa_choice(call, device).chosen.value();
}

// The fourteen rows that PyTorch's source gives on sm89 without cuDNN.
TEST(SdpaRules, GoldenTable) {
  const SdpaCall plain = call(DType::bf16, 128);
  const struct {
    const char* what;
    SdpaCall call;
    SdpaBackend backend;
  } rows[] = {
      {"bf16, 128", plain, flash},
      {"bf16, 128, mask", masked(plain), efficient},
      {"f32", call(DType::f32, 128), efficient},
      {"f64", call(DType::f64, 128), math},
      {"three dimensions",
       changed(plain,
               [](SdpaCall& c) {
                 c.query = c.key = c.value = {16, 64, 128};
               }),
       math},
      {"bf16, 100", call(DType::bf16, 100), flash},
      {"bf16, 100, mask", masked(call(DType::bf16, 100)), math},
      {"bf16, 320", call(DType::bf16, 320), efficient},
      {"causal, 2 over 5",
       changed(plain,
               [](SdpaCall& c) {
                 c.is_causal = true;
                 c.query = heads(8, 2, 128);
                 c.key = c.value = heads(8, 5, 128);
               }),
       efficient},
      {"192 and 128",
       changed(call(DType::bf16, 192), [](SdpaCall& c) { c.value = heads(8, 64, 128); }),
       efficient},
      {"training, 208",
       changed(call(DType::bf16, 208), [](SdpaCall& c) { c.requires_grad = true; }), efficient},
      {"last stride", changed(plain, [](SdpaCall& c) { c.last_strides_are_one = false; }), math},
      {"no keys", changed(plain, [](SdpaCall& c) { c.key = c.value = heads(8, 0, 128); }), math},
      {"grouped heads without enable_gqa",
       changed(plain, [](SdpaCall& c) { c.key = c.value = heads(2, 64, 128); }), math},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(chosen(row.call), row.backend) << row.what << ": " << name(chosen(row.call));
  }
}

TEST(SdpaRules, EveryRejectedBackendHasItsReasons) {
  const SdpaChoice choice = sdpa_choice(masked(call(DType::bf16, 100)), {});
  ASSERT_EQ(choice.rejected.size(), 2U);
  EXPECT_EQ(choice.rejected[0].backend, flash);
  EXPECT_THAT(choice.rejected[0].reasons, ElementsAre(HasSubstr("attn_mask")));
  EXPECT_EQ(choice.rejected[1].backend, efficient);
  EXPECT_THAT(choice.rejected[1].reasons, ElementsAre(HasSubstr("multiples of the alignment")));
  const SdpaChoice wide = sdpa_choice(masked(call(DType::f64, 320)), {});
  EXPECT_THAT(wide.rejected[0].reasons,
              ElementsAre(HasSubstr("attn_mask"), HasSubstr("256"), HasSubstr("f16")));
}

TEST(SdpaRules, WithoutMathNothingMayBeLeft) {
  SdpaDevice device;
  device.math_is_enabled = false;
  const SdpaChoice choice = sdpa_choice(call(DType::f64, 128), device);
  EXPECT_FALSE(choice.chosen.has_value());
  EXPECT_EQ(choice.rejected.size(), 4U);
}

// Generations: Turing has no flash and no bf16, Ampere and Hopper train every head size to 256,
// Ada (sm89) and consumer Blackwell (sm120) do not.
TEST(SdpaRules, GenerationsDiffer) {
  const SdpaDevice turing{.sm = 75};
  EXPECT_EQ(chosen(call(DType::f16, 128), turing), efficient);
  EXPECT_EQ(chosen(call(DType::bf16, 128), turing), math);
  EXPECT_EQ(chosen(call(DType::f32, 101), turing), efficient);  // no tensor cores, no alignment
  EXPECT_EQ(chosen(call(DType::f32, 101), {.sm = 80}), math);
  EXPECT_EQ(chosen(call(DType::f16, 128), {.sm = 130}), math);

  const auto training = [](int64_t size, double dropout) {
    return changed(call(DType::bf16, size), [&](SdpaCall& c) {
      c.requires_grad = true;
      c.dropout = dropout;
    });
  };
  for (const int sm : {80, 90, 100}) {
    EXPECT_EQ(chosen(training(208, 0), {.sm = sm}), flash) << sm;
    EXPECT_EQ(chosen(training(256, 0.5), {.sm = sm}), flash) << sm;
  }
  for (const int sm : {86, 89, 120}) {
    EXPECT_EQ(chosen(training(192, 0.5), {.sm = sm}), flash) << sm;
    EXPECT_EQ(chosen(training(208, 0), {.sm = sm}), efficient) << sm;
    EXPECT_EQ(chosen(training(256, 0), {.sm = sm}), flash) << sm;
    EXPECT_EQ(chosen(training(256, 0.5), {.sm = sm}), efficient) << sm;
  }
}

TEST(SdpaRules, CudnnComesFirstOnHopperOnly) {
  const SdpaDevice hopper{.sm = 90, .cudnn = 91600, .cudnn_frontend = 11000};
  EXPECT_EQ(chosen(call(DType::bf16, 128), hopper), cudnn);
  EXPECT_EQ(chosen(masked(call(DType::bf16, 128)), hopper), cudnn);
  EXPECT_EQ(chosen(call(DType::bf16, 256), hopper), flash);
  EXPECT_EQ(chosen(call(DType::bf16, 100), hopper), flash);
  EXPECT_EQ(chosen(changed(call(DType::bf16, 128), [](SdpaCall& c) { c.dropout = 0.1; }), hopper),
            flash);
  EXPECT_EQ(chosen(changed(call(DType::bf16, 128), [](SdpaCall& c) { c.dropout = 0.125; }), hopper),
            cudnn);
  SdpaDevice later = hopper;
  later.cudnn = 92300;
  later.cudnn_frontend = 12400;
  EXPECT_EQ(chosen(call(DType::bf16, 256), later), cudnn);
  SdpaDevice exact = hopper;
  exact.is_deterministic = true;
  EXPECT_EQ(chosen(call(DType::bf16, 128), exact), flash);
  for (const SdpaDevice& device :
       {SdpaDevice{.sm = 89, .cudnn = 91600}, SdpaDevice{.sm = 90, .cudnn = 91500},
        SdpaDevice{.sm = 90, .cudnn = 91600, .cudnn_is_deprioritized = true},
        SdpaDevice{.sm = 107, .cuda = 12900, .cudnn = 91600}}) {
    EXPECT_EQ(sdpa_choice(call(DType::bf16, 128), device).order,
              (std::vector<SdpaBackend>{flash, efficient, math, cudnn}))
        << device.sm;
  }
}

// Two or four dimensions, each of the scores' size or 1, and no gradient wanted.
TEST(SdpaRules, CudnnAsksForAMaskThatFitsTheScores) {
  const SdpaDevice hopper{.sm = 90, .cudnn = 91600, .cudnn_frontend = 11000};
  const auto with = [](const Shape& mask) {
    return changed(masked(call(DType::bf16, 128)), [&](SdpaCall& c) { c.mask = mask; });
  };
  for (const Shape& mask :
       {Shape{64, 64}, Shape{1, 64}, Shape{2, 8, 64, 64}, Shape{2, 1, 1, 64}, Shape{1, 1, 64, 1}}) {
    EXPECT_EQ(chosen(with(mask), hopper), cudnn) << fmt::format("{}", mask);
  }
  for (const Shape& mask : {Shape{64}, Shape{8, 64, 64}, Shape{1, 1, 1, 64, 64}, Shape{64, 63},
                            Shape{4, 1, 64, 64}, Shape{2, 2, 64, 64}}) {
    const SdpaChoice choice = sdpa_choice(with(mask), hopper);
    ASSERT_NE(choice.chosen, cudnn) << fmt::format("{}", mask);
    EXPECT_EQ(choice.rejected[0].backend, cudnn);
    EXPECT_THAT(choice.rejected[0].reasons, ElementsAre(HasSubstr("mask must be [Q, K]")));
  }
  const auto learned = changed(with({64, 64}), [](SdpaCall& c) { c.mask_requires_grad = true; });
  EXPECT_THAT(sdpa_choice(learned, hopper).rejected[0].reasons,
              ElementsAre(HasSubstr("wants a gradient")));
}

}  // namespace
}  // namespace faultline::nn
