#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "autograd/op.h"
#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "kernels/layout.h"
#include "nn/attention.h"
#include "nn/sdpa_rules.h"
#include "tests/diagnose/watched.h"

// attention.parity and dispatch.audit: what they name, and where they are silent.
namespace faultline::diagnose {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// ---- attention.parity ---------------------------------------------------------------------------

// The launch with other attributes, run by the framework's kernel.
template <class Change>
void run_changed(KernelArgs args, Change&& change) {
  auto attributes = args.attributes.as<FlashAttentionAttributes>();
  change(attributes);
  args.attributes = attributes;
  cpu::flash_attention(args);
}

void scaled_twice(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.mask.scale *= all.mask.scale; });
}
void never_scaled(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.mask.scale = 1; });
}
void one_key_more(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.mask.window += 1; });
}
void one_key_fewer(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.mask.window -= 1; });
}
void without_window(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.mask.window = 0; });
}
void without_softcap(const KernelArgs& args) {
  run_changed(args, [](auto& all) { all.softcap = 0; });
}
void tiled(const KernelArgs& args) {
  const int64_t key_heads = args.inputs[1].shape[1];
  for (int64_t h = 0; h < args.inputs[0].shape[1]; h += key_heads) {
    KernelArgs round = args;
    round.inputs[0] = slice_of(args.inputs[0], 1, h, key_heads);
    for (int i = 0; i < 2; ++i) round.outputs[i] = slice_of(args.outputs[i], 1, h, key_heads);
    cpu::flash_attention(round);
  }
}
void nothing(const KernelArgs&) {}
// All but the last row.
void all_but_one_row(const KernelArgs& args) {
  KernelArgs part = args;
  const int64_t rows = args.inputs[0].shape[2] - 1;
  part.inputs[0] = slice_of(args.inputs[0], 2, 0, rows);
  for (int i = 0; i < 2; ++i) part.outputs[i] = slice_of(args.outputs[i], 2, 0, rows);
  cpu::flash_attention(part);
}
void a_little_off(const KernelArgs& args) {
  cpu::flash_attention(args);
  args.outputs[0].as<float>()[0] += 1e-3F;
}

// q, k and v of six query heads over two key heads, nine positions.
struct Inputs {
  Tensor q = normal({2, 6, 9, 4}, 0, 2, 1, 1);
  Tensor k = normal({2, 2, 9, 4}, 0, 1, 1, 2);
  Tensor v = normal({2, 2, 9, 4}, 0, 1, 1, 3);
};

std::vector<Detection> attending_with(Kernel kernel, const nn::Mask& mask,
                                      const nn::AttentionOptions& options = {},
                                      const Inputs& in = {}) {
  const KernelRecord record{"flash_attention/of a test", kernel};
  return watched([&](Context& context) {
    const auto swapped = context.seams.replace<KernelSeam>([&](const SelectionRequest& request) {
      const bool is_ours = &request.op == &definition(Op::flash_attention);
      return is_ours ? Selection{&record, "test"} : KernelSeam::standard(request);
    });
    nn::attention(in.q, in.k, in.v, mask, options);
  });
}

TEST(AttentionParity, NamesTheMistakeOfAKernel) {
  const nn::Mask causal{};
  const nn::Mask window{.window = 3};
  const struct {
    Kernel kernel;
    nn::Mask mask;
    nn::AttentionOptions options;
    const char* cause;
  } rows[] = {
      {&scaled_twice, causal, {}, "attn.scale-twice"},
      {&never_scaled, causal, {}, "attn.scale-twice"},
      {&scaled_twice, window, {.scale = 0.25, .softcap = 5}, "attn.scale-twice"},
      {&tiled, causal, {}, "attn.gqa-order"},
      {&one_key_more, window, {}, "attn.window-off-by-one"},
      {&one_key_fewer, window, {}, "attn.window-off-by-one"},
      {&without_window, window, {}, "kernel.silent-fallback"},
      {&without_window, {.window = 3, .sinks = 1}, {}, "kernel.silent-fallback"},
      {&without_softcap, causal, {.softcap = 1}, "kernel.silent-fallback"},
      {&nothing, causal, {}, "kernel.silent-fallback"},
      {&all_but_one_row, causal, {}, "kernel.silent-fallback"},
  };
  for (const auto& row : rows) {
    const std::vector<Detection> found = attending_with(row.kernel, row.mask, row.options);
    ASSERT_THAT(found, Not(IsEmpty())) << row.cause;
    EXPECT_EQ(found[0].detector, "attention.parity") << row.cause;
    EXPECT_EQ(found[0].cause, row.cause) << found[0].evidence;
  }
}

TEST(AttentionParity, SaysWhatWasNotWritten) {
  const std::vector<Detection> found = attending_with(&all_but_one_row, {});
  ASSERT_THAT(found, Not(IsEmpty()));
  EXPECT_THAT(found[0].evidence, HasSubstr("writes nothing to 48 of 432 elements"));
}

// The memory of the output is that of a right call with the same inputs.
TEST(AttentionParity, SeesThatNothingWasWrittenWhereTheOldOutputIsRight) {
  const KernelRecord record{"flash_attention/of a test", &nothing};
  const Inputs in;
  std::vector<float> right;
  std::vector<float> stale;
  const std::vector<Detection> found = watched([&](Context& context) {
    right = nn::attention(in.q, in.k, in.v, {}).to_vector<float>();
    const auto swapped = context.seams.replace<KernelSeam>([&](const SelectionRequest& request) {
      const bool is_ours = &request.op == &definition(Op::flash_attention);
      return is_ours ? Selection{&record, "test"} : KernelSeam::standard(request);
    });
    stale = nn::attention(in.q, in.k, in.v, {}).to_vector<float>();
  });
  EXPECT_EQ(stale, right);
  EXPECT_THAT(names_of(found), ElementsAre("attention.parity -> kernel.silent-fallback"));
}

TEST(AttentionParity, NamesNobodyForAnErrorThatNoMistakePredicts) {
  EXPECT_THAT(names_of(attending_with(&a_little_off, {})), ElementsAre("attention.parity -> "));
}

// Padded values are NaN, and take part with weight 0.
void over_all_keys(const KernelArgs& args) {
  cpu::flash_attention(args);
  const TensorView& y = args.outputs[0];
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.as<float>()[offset_of(y, i)] += 0.0F * args.inputs[2].as<float>()[args.inputs[2].numel() - 1];
  }
}

Inputs ending_in_nan(Tensor& key_valid) {
  Inputs in;
  std::vector<float> v = in.v.to_vector<float>();
  std::vector<float> valid(18, 1);
  for (const size_t b : {0, 1}) {
    valid[b * 9 + 8] = 0;
    for (size_t g = 0; g < 2; ++g) {
      std::fill_n(v.begin() + static_cast<int64_t>(((b * 2 + g) * 9 + 8) * 4), 4, NAN);
    }
  }
  in.v = tensor(v, {2, 2, 9, 4});
  key_valid = cast(tensor(valid, {2, 9}), DType::boolean);
  return in;
}

TEST(AttentionParity, TellsNanOfHiddenValuesFromAllElse) {
  Tensor key_valid;
  const Inputs in = ending_in_nan(key_valid);
  const nn::Mask mask{.causal = true, .key_valid = key_valid};
  const std::vector<std::string> found = names_of(attending_with(&over_all_keys, mask, {}, in));
  EXPECT_THAT(found, Contains("attention.parity -> attn.nan-in-masked-v"));
  EXPECT_THAT(names_of(attending_with(&cpu::flash_attention, mask, {}, in)), IsEmpty());
}

TEST(AttentionParity, IsSilentOnRightAttention) {
  const Tensor documents =
      tensor<int32_t>({0, 0, 0, 1, 1, 1, 1, 2, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1}, {2, 9});
  const nn::Mask masks[] = {{},
                            {.causal = false},
                            {.window = 3},
                            {.causal = false, .window = 2},
                            {.window = 2, .prefix = 2, .sinks = 3},
                            {.documents = documents}};
  for (const nn::Mask& mask : masks) {
    for (const double spread : {0.01, 1.0, 40.0}) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        const auto found = watched([&](Context&) {
          const Tensor q = cast(normal({2, 4, 9, 8}, 0, spread, 1, 1), dtype);
          const Tensor k = cast(normal({2, 2, 9, 8}, 0, 1, 1, 2), dtype);
          nn::attention(q, k, k, mask, {.softcap = spread > 1 ? 30.0 : 0});
        });
        EXPECT_THAT(found, IsEmpty()) << nn::kind(mask) << " " << spread << " " << name(dtype);
      }
    }
  }
}

// With dropout the answer is random; in f64 the reference itself runs.
TEST(AttentionParity, IsSilentWhereItSaysSo) {
  const KernelRecord wrong{"flash_attention/of a test", &scaled_twice};
  EXPECT_THAT(watched([&](Context& context) {
                const auto swapped =
                    context.seams.replace<KernelSeam>([&](const SelectionRequest& request) {
                      const bool is_ours = &request.op == &definition(Op::flash_attention);
                      return is_ours ? Selection{&wrong, "test"} : KernelSeam::standard(request);
                    });
                const Inputs in;
                const Tensor key = tensor<int64_t>({1, 1, 0}, {3});
                nn::attention(in.q, in.k, in.v, {},
                              {.dropout = {.key = key, .p = 0.5, .layer = 0}});
              }),
              IsEmpty());
}

// ---- dispatch.audit -----------------------------------------------------------------------------

TEST(DispatchAudit, NamesAPreferenceThatWasNotHeard) {
  const auto attend = [](const nn::Mask& mask, const nn::AttentionPolicy& policy) {
    return watched([&](Context&) {
      const Tensor q = normal({1, 1, 4, 4}, 0, 1, 1, 1);
      nn::attention(q, q, q, mask, {.policy = policy});
    });
  };
  using enum nn::AttentionImplementation;
  const Tensor all = cast(ones({1, 1, 4, 4}), DType::boolean);
  const nn::Mask dense{.causal = false, .keep = all};
  const std::vector<Detection> found = attend(dense, nn::AttentionPolicy::prefer(flash));
  EXPECT_THAT(names_of(found), ElementsAre("dispatch.audit -> kernel.silent-fallback"));
  EXPECT_THAT(found[0].evidence, HasSubstr("the mask is a keep tensor"));
  EXPECT_THAT(attend(dense, {}), IsEmpty());
  EXPECT_THAT(attend(dense, nn::AttentionPolicy::forbid(flash)), IsEmpty());
  EXPECT_THAT(attend({}, nn::AttentionPolicy::prefer(flash)), IsEmpty());
  EXPECT_THAT(attend({}, nn::AttentionPolicy::require(math)), IsEmpty());
}

TEST(DispatchAudit, SaysWhyPytorchTakesMath) {
  const Shape shape{2, 8, 64, 100};
  nn::SdpaCall call{.dtype = DType::bf16, .query = shape, .key = shape, .value = shape};
  const auto choose = [&](const nn::SdpaDevice& device) {
    return watched([&](Context&) { nn::sdpa_choice(call, device); });
  };
  EXPECT_THAT(choose({}), IsEmpty());
  call.has_mask = true;
  call.mask = {64, 64};
  const std::vector<Detection> found = choose({});
  ASSERT_THAT(names_of(found), ElementsAre("dispatch.audit -> sdpa.fallback"));
  EXPECT_THAT(found[0].evidence, HasSubstr("attn_mask"));
  EXPECT_THAT(choose({.flash_is_enabled = false, .efficient_is_enabled = false}), IsEmpty());
}

}  // namespace
}  // namespace faultline::diagnose
