// Five public bugs of attention and caches, rebuilt from what their reports say. For each the right
// computation passes the check that names the wrong one. docs/attention.md lists them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "autograd/functional.h"
#include "core/context.h"
#include "diagnose/attention_checks.h"
#include "nn/gpt2.h"
#include "nn/llama.h"

// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
namespace faultline::diagnose {
namespace {

class PublicBugs : public testing::Test {
 protected:
  // Scores of a model whose weights are small are next to 0, and hide what is wrong in rounding.
  static nn::LlamaConfig config() {
    nn::LlamaConfig config;
    config.vocab_size = 29;
    config.seq_len = 40;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_key_value_heads = 2;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.init_std = 0.3;
    return config;
  }

  Context context_;
  ContextGuard guard_{context_};
  nn::Llama model_{config(), 3};
};

// ---- causality that a mask of one's own turns off -----------------------------------------------
// huggingface/transformers 48748: for plain causal attention the mask's builder gives nothing and
// relies on the kernel's causal flag; the model then passes a mask that it made from its values,
// and a call with a mask is not causal.

enum class PlainCausal : uint8_t { leaves_out_the_mask, builds_the_mask };

// `gain` says how much the values count in the model's own mask, which hides no key.
AttentionFunction with_a_mask_of_its_own(PlainCausal plain, double gain) {
  return [=](const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD, const nn::Mask& mask,
             double softcap) {
    const bool is_plain = mask.causal && mask.window == 0 && mask.prefix == 0 &&
                          !mask.key_valid.defined() && !mask.documents.defined();
    const bool left_out = is_plain && plain == PlainCausal::leaves_out_the_mask;
    nn::Mask own = left_out ? nn::Mask{.causal = false} : mask;
    const int64_t B = v_BGKD.size(0);
    const int64_t K = v_BGKD.size(2);
    const Tensor of_keys = reshape(slice(slice(v_BGKD, 1, 0, 1), 3, 0, 1) * gain, {B, 1, 1, K});
    if (gain != 0) own.bias = contiguous(expand(of_keys, {B, 1, q_BHQD.size(2), K}));
    return nn::attention(q_BHQD, k_BGKD, v_BGKD, own, {.softcap = softcap});
  };
}

TEST_F(PublicBugs, AMaskOfItsOwnTurnsCausalityOff) {
  const AttentionFunction right = with_a_mask_of_its_own(PlainCausal::builds_the_mask, 0);
  EXPECT_EQ(check_visibility(right).difference, 0);
  EXPECT_TRUE(check_answers("own mask", right).ok());

  // Heads and batches times what is hidden in each plain causal probe: 15 pairs of 6 x 6 three
  // times (one has large scores, one larger heads), one of 2 x 7, three of 1 x 8, ten of 5 x 5 with
  // six heads, 8515 of 131 x 131. Padding, a window and documents need a mask, and one new position
  // sees all, so that these are right.
  const AttentionFunction wrong = with_a_mask_of_its_own(PlainCausal::leaves_out_the_mask, 0);
  EXPECT_EQ(check_visibility(wrong).difference,
            2 * 3 * (15 + 15 + 15 + 1 + 3) + 2 * 6 * 10 + 2 * 8515);
  const AttentionCheck answers = check_answers("own mask", wrong);
  EXPECT_TRUE(answers.failed());
  EXPECT_EQ(answers.what, "No mask is applied at all.");
}

TEST_F(PublicBugs, AMaskOfItsOwnMakesAModelSeeTheFuture) {
  const auto planted = [&](PlainCausal plain) {
    const AttentionFunction attend = with_a_mask_of_its_own(plain, 1);
    return context_.seams.replace<nn::SelfAttentionSeam>(
        [attend](const Tensor& q, const Tensor& k, const Tensor& v, const nn::Mask& mask,
                 const nn::AttentionOptions&) { return attend(q, k, v, mask, 0); });
  };
  {
    const auto right = planted(PlainCausal::builds_the_mask);
    EXPECT_EQ(check_causality(model_).difference, 0);  // bits
    EXPECT_TRUE(check_cached(model_, CacheKind::contiguous).ok());
  }
  const auto wrong = planted(PlainCausal::leaves_out_the_mask);
  const AttentionCheck causality = check_causality(model_);
  EXPECT_TRUE(causality.failed());
  EXPECT_EQ(causality.what, "Token 1 changed logits before it.");
  // As in the report, with a cache another text comes: a prompt of 12 is not the beginning of 24.
  const AttentionCheck cached = check_cached(model_, CacheKind::contiguous);
  EXPECT_TRUE(cached.failed());
  EXPECT_EQ(cached.what, "They part at position 0.");
}

// ---- an added mask that is scaled too -----------------------------------------------------------
// tenstorrent/tt-metal 42891: the kernel folds the scale into the exponent, exp((q k + mask)
// scale), so that a mask of finite numbers shrinks with the scores. Mended by dividing it before.

enum class MaskBeforeKernel : uint8_t { as_it_is, divided_by_scale };

AttentionFunction with_the_scale_in_the_exponent(MaskBeforeKernel before) {
  return [=](const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD, const nn::Mask& mask,
             double softcap) {
    const double scale = 1 / std::sqrt(static_cast<double>(q_BHQD.size(3)));
    nn::Mask scaled = mask;
    if (mask.bias.defined()) {
      const Tensor given =
          before == MaskBeforeKernel::divided_by_scale ? mask.bias * (1 / scale) : mask.bias;
      scaled.bias = given * scale;
    }
    return nn::attention(q_BHQD, k_BGKD, v_BGKD, scaled, {.scale = scale, .softcap = softcap});
  };
}

TEST_F(PublicBugs, AnAddedMaskIsScaledLikeTheScores) {
  const AttentionFunction right =
      with_the_scale_in_the_exponent(MaskBeforeKernel::divided_by_scale);
  const AttentionFunction wrong = with_the_scale_in_the_exponent(MaskBeforeKernel::as_it_is);
  EXPECT_TRUE(check_bias(right).ok());
  // What only hides cannot tell: minus infinity times a scale is itself.
  EXPECT_EQ(check_visibility(wrong).difference, 0);
  EXPECT_TRUE(check_answers("hard masks", wrong).ok());
  const AttentionCheck check = check_bias(wrong);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.what, "The bias is scaled as the scores are.");
}

TEST_F(PublicBugs, AnAddedMaskOfMinusTenCountsAsMinusOneAndAQuarter) {
  const auto weight_of_second_key = [](const AttentionFunction& attend) {
    const Tensor none = zeros({1, 1, 2, 64});
    const Tensor v = contiguous(expand(tensor<float>({0, 1}, {1, 1, 2, 1}), {1, 1, 2, 64}));
    const nn::Mask mask{.causal = false, .bias = tensor<float>({0, -10}, {1, 1, 1, 2})};
    return attend(slice(none, 2, 0, 1), none, v, mask, 0).to_vector<double>()[0];
  };
  const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
  // Products and sums of a few numbers up to 1: some units of f32, of the exponent's 10 too.
  constexpr double kBound = 16 * 0x1p-24;
  EXPECT_NEAR(
      weight_of_second_key(with_the_scale_in_the_exponent(MaskBeforeKernel::divided_by_scale)),
      logistic(-10), kBound);
  EXPECT_NEAR(weight_of_second_key(with_the_scale_in_the_exponent(MaskBeforeKernel::as_it_is)),
              logistic(-1.25), kBound);
}

// ---- padding of a captured pass that is written to the last slot --------------------------------
// vllm-project/vllm 43810: a pass is padded to the size of a captured graph, and the padding's slot
// is -1. Python's -1 // size is the last block and -1 % size its last slot, so that the padding
// overwrites whoever is there.

enum class NegativeSlots : uint8_t { skipped, counted_from_the_end };

std::function<nn::KvReadSeam::Signature> padded_pass(NegativeSlots negative) {
  return [negative](const Tensor& slots_BGCD, int64_t filled) {
    constexpr int64_t kPaddingSlot = -1;
    const int64_t C = slots_BGCD.size(2);
    const int64_t slot = (kPaddingSlot % C + C) % C;  // % as in Python
    if (negative == NegativeSlots::counted_from_the_end) {
      fill_(slice(slots_BGCD, 2, slot, slot + 1), 0);
    }
    return nn::KvReadSeam::standard(slots_BGCD, filled);
  };
}

TEST_F(PublicBugs, PaddingOfACapturedPassOverwritesTheLastSlot) {
  {
    const auto right = context_.seams.replace<nn::KvReadSeam>(padded_pass(NegativeSlots::skipped));
    EXPECT_TRUE(check_generation(model_, CacheKind::contiguous).ok());
  }
  const auto wrong =
      context_.seams.replace<nn::KvReadSeam>(padded_pass(NegativeSlots::counted_from_the_end));
  // While the last slot is free nobody notices: this cache has two slots more than the text.
  EXPECT_TRUE(check_cached(model_, CacheKind::contiguous).ok());
  // Prompts of 9 and 12 tokens, 12 more, of which the last needs no slot: 23 slots, the last of
  // which is filled in the last pass.
  const AttentionCheck check = check_generation(model_, CacheKind::contiguous);
  EXPECT_TRUE(check.failed());
  EXPECT_EQ(check.what, "The padded row parts at its position 19.");
  EXPECT_EQ(check.cause, "attn.past-ignored:write-index");
}

// ---- scores that grow over the queries ----------------------------------------------------------
// deepspeedai/DeepSpeed 2300, 2359: the scores of a call lie in one workspace with its queries, and
// beyond some length they reach them. Short texts are right.

nn::Mask mask_of_row(const nn::Mask& mask, int64_t b) {
  nn::Mask row = mask;
  if (mask.key_valid.defined()) row.key_valid = slice(mask.key_valid, 0, b, b + 1);
  if (mask.documents.defined()) row.documents = slice(mask.documents, 0, b, b + 1);
  return row;
}

// One head after the other, with room for so many scores before the queries; 0: for all.
AttentionFunction in_one_workspace(int64_t room) {
  return [room](const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD,
                const nn::Mask& mask, double softcap) {
    const int64_t H = q_BHQD.size(1);
    const int64_t QD = q_BHQD.size(2) * q_BHQD.size(3);
    const int64_t QK = q_BHQD.size(2) * k_BGKD.size(2);
    const int64_t heads = q_BHQD.size(0) * H;
    const int64_t first_query = room != 0 ? room : heads * QK;
    const auto q = q_BHQD.to_vector<float>();
    std::vector<float> workspace(static_cast<size_t>(std::max(first_query, heads * QK)) + q.size());
    std::copy(q.begin(), q.end(), workspace.begin() + first_query);
    std::vector<Tensor> y;
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t b = n / H;
      const int64_t g = n % H / (H / k_BGKD.size(1));
      const auto head = [&](const Tensor& x) { return slice(slice(x, 0, b, b + 1), 1, g, g + 1); };
      const auto queries = std::span<const float>(workspace).subspan(
          static_cast<size_t>(first_query + n * QD), static_cast<size_t>(QD));
      const Tensor q_11QD = tensor(queries, {1, 1, q_BHQD.size(2), q_BHQD.size(3)});
      const auto scores = matmul(q_11QD, transpose(head(k_BGKD), -2, -1)).to_vector<float>();
      std::copy(scores.begin(), scores.end(), workspace.begin() + n * QK);
      y.push_back(nn::attention(q_11QD, head(k_BGKD), head(v_BGKD), mask_of_row(mask, b),
                                {.softcap = softcap}));
    }
    return reshape(cat(y, 1), q_BHQD.shape());
  };
}

constexpr int64_t kRoom = 1024;

TEST_F(PublicBugs, ScoresOfALongTextOverwriteTheQueries) {
  EXPECT_TRUE(check_answers("workspace", in_one_workspace(0)).ok());
  const AttentionCheck check = check_answers("workspace", in_one_workspace(kRoom));
  EXPECT_TRUE(check.failed());
  EXPECT_NE(check.what.find("-long' ("), std::string::npos) << check.what;
  EXPECT_EQ(check.cause, "");
  // All the others are right: without the long ones the check passes.
  const AttentionFunction short_ones = [](const Tensor& q, const Tensor& k, const Tensor& v,
                                          const nn::Mask& mask, double softcap) {
    return in_one_workspace(k.size(2) > 100 ? 0 : kRoom)(q, k, v, mask, softcap);
  };
  EXPECT_TRUE(check_answers("workspace", short_ones).ok());
}

// The scores of the first head are the queries of the second.
TEST_F(PublicBugs, TheSecondHeadAsksWithTheScoresOfTheFirst) {
  std::vector<AttentionProbe> probes = attention_probes();
  AttentionProbe& probe = *std::find_if(probes.begin(), probes.end(),
                                        [](const auto& p) { return p.name == "causal-long"; });
  const int64_t K = probe.keys;
  const int64_t D = probe.head_size;
  const Shape q_shape{1, 2, K, D};
  const auto answer = in_one_workspace(kRoom)(tensor(probe.q, q_shape), tensor(probe.k, q_shape),
                                              tensor(probe.v, q_shape), nn::Mask{}, 0)
                          .to_vector<double>();
  const auto QD = static_cast<size_t>(K * D);
  for (size_t i = 0; i < QD; ++i) {
    const auto place = static_cast<int64_t>(i) + kRoom + K * D;  // in the scores of the first head
    double score = 0;
    for (int64_t d = 0; d < D; ++d) {
      score += static_cast<double>(probe.q[static_cast<size_t>(place / K * D + d)]) *
               probe.k[static_cast<size_t>(place % K * D + d)];
    }
    probe.q[QD + i] = static_cast<float>(score);
  }
  const auto expected = compute_attention(probe);
  // The bound of scores in the hundreds, which these queries make.
  constexpr double kBound = 5 * 700 * 0x1p-23;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(answer[i], expected[i], kBound) << "element " << i;
  }
}

// ---- a cache that evicts before it answers ------------------------------------------------------
// rajveer43/VeloxQuant-MLX 370: a cache drops keys while it takes those of a pass, and gives what
// is left. The pass's mask is "causal", which lays the last query on the last key: right only where
// what is left is the end of the text. Mended by giving all keys of the pass and evicting after.

enum class Evicts : uint8_t { before_it_gives, after_it_gave };

AttentionFunction over_an_evicting_cache(Evicts when) {
  return [when](const Tensor& q_BHQD, const Tensor& k_BGKD, const Tensor& v_BGKD, const nn::Mask&,
                double softcap) {
    constexpr int64_t kFirst = 1;
    constexpr int64_t kLast = 3;
    const auto given = [&](const Tensor& x) {
      const int64_t K = x.size(2);
      if (when == Evicts::after_it_gave || K <= kFirst + kLast) return x;
      const Tensor kept[] = {slice(x, 2, 0, kFirst), slice(x, 2, K - kLast, K)};
      return cat(kept, 2);
    };
    const Tensor k = given(k_BGKD);
    const nn::Mask causal =
        nn::causal_mask(q_BHQD.size(2), k.size(2), nn::CausalAlign::bottom_right);
    return nn::attention(q_BHQD, k, given(v_BGKD), causal, {.softcap = softcap});
  };
}

TEST_F(PublicBugs, APassOverAnEvictingCacheLosesWhatItMayStillSee) {
  const nn::MaskPlacement prompt{.sizes = {1, 2, 8, 8}};
  const auto causal = [](const nn::MaskPoint& at) { return at.key <= at.query; };
  EXPECT_EQ(
      check_mask({}, prompt, causal, over_an_evicting_cache(Evicts::after_it_gave)).difference, 0);
  // Eight queries over the keys 0, 5, 6 and 7: the first four see nothing, the fifth key 0, and so
  // on to the last, which sees all four. 36 pairs of a causal text, less 1 + 2 + 3 + 4, in 2 heads.
  const AttentionFunction wrong = over_an_evicting_cache(Evicts::before_it_gives);
  EXPECT_EQ(check_mask({}, prompt, causal, wrong).difference, 2 * (36 - 10));
  // Counting keys from the end gives these rows; that they stand elsewhere is what is forgotten.
  const auto from_the_end = [](const nn::MaskPoint& at) {
    const int64_t number = at.key == 0 ? 0 : at.key - 4;
    return number >= 0 && number <= at.query - 4 && (at.key == 0 || at.key >= 5);
  };
  EXPECT_EQ(check_mask({}, prompt, from_the_end, wrong).difference, 0);
  // A text as long as the cache loses nothing, so that short prompts show nothing.
  EXPECT_EQ(check_mask({}, {.sizes = {1, 2, 4, 4}}, causal, wrong).difference, 0);
}

}  // namespace
}  // namespace faultline::diagnose
