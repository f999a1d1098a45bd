// Whether an implementation of attention is judged by its answers alone. The implementations here
// are written with tensors, as people write them, and know nothing of the rules that the judge
// predicts with.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "autograd/functional.h"
#include "core/context.h"
#include "diagnose/attention_judge.h"

namespace faultline::diagnose {
namespace {

// What an implementation is given: scores scaled, key heads repeated, the mask as [B, 1, Q, K].
struct Call {
  const AttentionProbe& probe;
  Tensor scores_BHQK;
  Tensor v_BHKD;
  Tensor visible_B1QK;
};
using Implementation = std::function<Tensor(const Call& call)>;

Tensor repeated(const std::vector<float>& values, const AttentionProbe& probe) {
  const int64_t B = probe.batch;
  const int64_t G = probe.key_heads;
  const int64_t K = probe.keys;
  const int64_t D = probe.head_size;
  const Tensor given = tensor(values, {B, G, 1, K, D});
  return reshape(expand(given, {B, G, probe.heads / G, K, D}), {B, probe.heads, K, D});
}

Tensor scores_of(const AttentionProbe& probe, const Tensor& k_BHKD) {
  const Tensor q = tensor(probe.q, {probe.batch, probe.heads, probe.queries, probe.head_size});
  const double scale = 1 / std::sqrt(static_cast<double>(probe.head_size));
  const Tensor scores = matmul(q, transpose(k_BHKD, -2, -1)) * scale;
  return probe.softcap == 0 ? scores : tanh(scores * (1 / probe.softcap)) * probe.softcap;
}

Tensor bools(const std::vector<uint8_t>& values, const Shape& shape) {
  Tensor result = empty(shape, DType::boolean);
  std::copy(values.begin(), values.end(), result.mutable_data<bool>().begin());
  return result;
}

std::map<std::string, Tensor> answers(const Implementation& implementation) {
  std::map<std::string, Tensor> result;
  for (const AttentionProbe& probe : attention_probes()) {
    const Tensor visible = bools(probe.mask(), {probe.batch, 1, probe.queries, probe.keys});
    const Call call{probe, scores_of(probe, repeated(probe.k, probe)), repeated(probe.v, probe),
                    visible};
    result[probe.name] = implementation(call);
  }
  return result;
}

Tensor lowest_where_hidden(const Tensor& scores, const Tensor& visible, double lowest) {
  return where(visible, scores, full({1}, lowest));
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Zero weights drop what hidden values hold.
Tensor mixed(const Tensor& weights, const Call& call) {
  const Tensor finite = where(isfinite(call.v_BHKD), call.v_BHKD, zeros({1}));
  return matmul(weights, finite);
}

Tensor right(const Call& call) {
  const Tensor masked = lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30);
  return mixed(where(call.visible_B1QK, softmax(masked), zeros({1})), call);
}

class AttentionJudge : public testing::Test {
 protected:
  AttentionVerdict judge(const Implementation& implementation) {
    return judge_attention(attention_probes(), answers(implementation));
  }
  // Exactly one mistake is named, of this cause.
  void expect_named(const char* cause, const Implementation& implementation) {
    const AttentionVerdict verdict = judge(implementation);
    EXPECT_GT(verdict.wrong(), 0);
    ASSERT_EQ(verdict.named.size(), 1U)
        << "nearest: " << (verdict.nearest ? verdict.nearest->what : "none");
    EXPECT_STREQ(verdict.named[0]->cause, cause);
  }

  Context context_;
  ContextGuard guard_{context_};
};

TEST_F(AttentionJudge, FindsNothingInTheRightCode) {
  const AttentionVerdict verdict = judge(right);
  EXPECT_EQ(verdict.wrong(), 0);
  EXPECT_EQ(verdict.answered(), static_cast<int64_t>(attention_probes().size()));
  EXPECT_TRUE(verdict.named.empty());
}

TEST_F(AttentionJudge, NamesTheInvertedMask) {
  expect_named("attn.mask-broadcast:inverted", [](const Call& call) {
    Call turned = call;
    turned.visible_B1QK = logical_not(call.visible_B1QK);
    const Tensor weights = where(
        turned.visible_B1QK,
        softmax(lowest_where_hidden(call.scores_BHQK, turned.visible_B1QK, -1e30)), zeros({1}));
    return matmul(weights, call.v_BHKD);  // what was hidden is read, NaN and all
  });
}

TEST_F(AttentionJudge, NamesAMaskAddedAsNumbers) {
  expect_named("attn.mask-broadcast:additive-float", [](const Call& call) {
    return matmul(softmax(call.scores_BHQK + cast(call.visible_B1QK, DType::f32)), call.v_BHKD);
  });
}

TEST_F(AttentionJudge, NamesMultipliedScores) {
  expect_named("attn.mask-multiply:pre", [](const Call& call) {
    return matmul(softmax(call.scores_BHQK * cast(call.visible_B1QK, DType::f32)), call.v_BHKD);
  });
}

TEST_F(AttentionJudge, NamesMultipliedWeights) {
  expect_named("attn.mask-multiply:post", [](const Call& call) {
    return matmul(softmax(call.scores_BHQK) * cast(call.visible_B1QK, DType::f32), call.v_BHKD);
  });
}

TEST_F(AttentionJudge, NamesCausalityThatForgetsThePast) {
  expect_named("attn.causal-align", [](const Call& call) {
    AttentionProbe local = call.probe;
    local.query_offset = 0;
    Call turned = call;
    turned.visible_B1QK = bools(local.mask(), call.visible_B1QK.shape());
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesAWindowOfOneKeyTooMany) {
  expect_named("attn.window-off-by-one", [](const Call& call) {
    AttentionProbe wider = call.probe;
    if (wider.window > 0) ++wider.window;
    Call turned = call;
    turned.visible_B1QK = bools(wider.mask(), call.visible_B1QK.shape());
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesDocumentsThatSeeEachOther) {
  expect_named("attn.packing-leak", [](const Call& call) {
    AttentionProbe packed = call.probe;
    packed.documents.clear();
    Call turned = call;
    turned.visible_B1QK = bools(packed.mask(), call.visible_B1QK.shape());
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesTiledKeyHeads) {
  expect_named("attn.gqa-order", [](const Call& call) {
    const AttentionProbe& probe = call.probe;
    const auto tiled = [&](const std::vector<float>& values) {
      const Tensor given =
          tensor(values, {probe.batch, probe.key_heads, probe.keys, probe.head_size});
      const std::vector<Tensor> copies(static_cast<size_t>(probe.heads / probe.key_heads), given);
      return cat(copies, 1);
    };
    const Call turned{probe, scores_of(probe, tiled(probe.k)), tiled(probe.v), call.visible_B1QK};
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesScoresThatAreScaledTwice) {
  expect_named("attn.scale-twice", [](const Call& call) {
    const AttentionProbe& probe = call.probe;
    Call turned = call;
    const double scale = 1 / std::sqrt(static_cast<double>(probe.head_size));
    const Tensor q =
        tensor(probe.q, {probe.batch, probe.heads, probe.queries, probe.head_size}) * scale;
    const Tensor scores = matmul(q, transpose(repeated(probe.k, probe), -2, -1)) * scale;
    turned.scores_BHQK =
        probe.softcap == 0 ? scores : tanh(scores * (1 / probe.softcap)) * probe.softcap;
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesALostSoftcap) {
  expect_named("kernel.silent-fallback:dropped-feature", [](const Call& call) {
    AttentionProbe plain = call.probe;
    plain.softcap = 0;
    Call turned = call;
    turned.scores_BHQK = scores_of(plain, repeated(plain.k, plain));
    return right(turned);
  });
}

TEST_F(AttentionJudge, NamesNanInRowsThatSeeNothing) {
  expect_named("softmax.masked-row", [](const Call& call) {
    return mixed(softmax(lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, kMinusInfinity)),
                 call);
  });
}

TEST_F(AttentionJudge, NamesNanThatLeaksThroughAZeroWeight) {
  expect_named("attn.nan-in-masked-v", [](const Call& call) {
    const Tensor masked = lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30);
    return matmul(where(call.visible_B1QK, softmax(masked), zeros({1})), call.v_BHKD);
  });
}

TEST_F(AttentionJudge, NamesExponentialsThatOverflow) {
  expect_named("softmax.overflow:naive", [](const Call& call) {
    const Tensor raised = exp(lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30));
    const Tensor sums = sum(raised, {-1}, KeepDim::yes);
    const Tensor empty_rows =
        equal(amax(cast(call.visible_B1QK, DType::f32), {-1}, KeepDim::yes), zeros({1}));
    return where(empty_rows, zeros({1}), mixed(raised / sums, call));
  });
}

TEST_F(AttentionJudge, SaysThatNothingKnownExplainsOtherMistakes) {
  const AttentionVerdict verdict = judge([](const Call& call) { return right(call) * 1.25; });
  EXPECT_GT(verdict.wrong(), 10);
  EXPECT_TRUE(verdict.named.empty());
}

TEST_F(AttentionJudge, LeavesOutWhatWasNotAnswered) {
  auto given = answers(right);
  given.erase("softcap");
  const AttentionVerdict verdict = judge_attention(attention_probes(), given);
  EXPECT_EQ(verdict.wrong(), 0);
  EXPECT_EQ(verdict.answered(), static_cast<int64_t>(attention_probes().size()) - 1);
}

TEST_F(AttentionJudge, RefusesAnswersThatFitNoProbe) {
  auto given = answers(right);
  given["causal"] = zeros({2, 3, 6});
  EXPECT_THROW(judge_attention(attention_probes(), given), InvalidArgument);
  given = answers(right);
  given["casual"] = given["causal"];
  EXPECT_THROW(judge_attention(attention_probes(), given), InvalidArgument);
  EXPECT_THROW(judge_attention(attention_probes(), {}), InvalidArgument);
}

// A wrong answer must count as wrong where it is NaN and the right one is not.
TEST_F(AttentionJudge, DoesNotTakeNanForAnAnswer) {
  auto given = answers(right);
  given["plain"] = full(given["plain"].shape(), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(judge_attention(attention_probes(), given).wrong(), 1);
}

}  // namespace
}  // namespace faultline::diagnose
