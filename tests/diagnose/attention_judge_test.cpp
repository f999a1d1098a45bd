// Whether an implementation of attention is judged by its answers alone. The implementations here
// are written with tensors, as people write them, and know nothing of the rules that the judge
// predicts with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "autograd/functional.h"
#include "core/context.h"
#include "core/float16.h"
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

// The same call with another mask, [B, H, Q, K].
Call masked_by(const Call& call,
               const std::function<bool(int64_t b, int64_t h, int64_t q, int64_t k)>& visible) {
  const AttentionProbe& probe = call.probe;
  std::vector<uint8_t> pairs;
  for (int64_t b = 0; b < probe.batch; ++b) {
    for (int64_t h = 0; h < probe.heads; ++h) {
      for (int64_t q = 0; q < probe.queries; ++q) {
        for (int64_t k = 0; k < probe.keys; ++k) pairs.push_back(visible(b, h, q, k) ? 1 : 0);
      }
    }
  }
  Call turned = call;
  turned.visible_B1QK = bools(pairs, {probe.batch, probe.heads, probe.queries, probe.keys});
  return turned;
}

// Right, of a probe with another mask.
template <class Change>
Tensor with_mask_of(const Call& call, Change&& change) {
  AttentionProbe other = call.probe;
  change(other);
  Call turned = call;
  turned.visible_B1QK = bools(other.mask(), call.visible_B1QK.shape());
  return right(turned);
}

// Padding alone, and the probe without it.
bool is_text(const AttentionProbe& probe, int64_t row, int64_t key) {
  return probe.key_valid.empty() || probe.key_valid[static_cast<size_t>(row * probe.keys + key)];
}
AttentionProbe without_padding(AttentionProbe probe) {
  probe.key_valid.clear();
  return probe;
}

// ---- the mistakes, as people make them ----------------------------------------------------------

Tensor keeps_what_it_should_hide(const Call& call) {
  const Tensor turned = logical_not(call.visible_B1QK);
  const Tensor weights = softmax(lowest_where_hidden(call.scores_BHQK, turned, -1e30));
  // What was hidden is read, NaN and all.
  return matmul(where(turned, weights, zeros({1})), call.v_BHKD);
}

Tensor pads_the_queries(const Call& call) {
  const AttentionProbe bare = without_padding(call.probe);
  return right(masked_by(call, [&](int64_t b, int64_t, int64_t q, int64_t k) {
    return bare.visible(b, q, k) && is_text(call.probe, b, bare.query_offset + q);
  }));
}

Tensor reads_the_batch_as_queries(const Call& call) {
  const AttentionProbe bare = without_padding(call.probe);
  const bool fits = bare.batch == bare.queries;
  return right(masked_by(call, [&](int64_t b, int64_t, int64_t q, int64_t k) {
    return bare.visible(b, q, k) && is_text(call.probe, fits ? q : b, k);
  }));
}

Tensor reads_the_batch_as_heads(const Call& call) {
  const AttentionProbe& probe = call.probe;
  const bool fits = probe.batch == probe.heads;
  return right(masked_by(call, [&](int64_t b, int64_t h, int64_t q, int64_t k) {
    return probe.visible(fits ? h : b, q, k);
  }));
}

Tensor adds_forbidden(const Call& call) {
  const Tensor hidden = cast(logical_not(call.visible_B1QK), DType::f32);
  return matmul(softmax(call.scores_BHQK + hidden), call.v_BHKD);
}

Tensor adds_keep(const Call& call) {
  return matmul(softmax(call.scores_BHQK + cast(call.visible_B1QK, DType::f32)), call.v_BHKD);
}

Tensor multiplies_scores(const Call& call) {
  return matmul(softmax(call.scores_BHQK * cast(call.visible_B1QK, DType::f32)), call.v_BHKD);
}

Tensor multiplies_weights(const Call& call) {
  return matmul(softmax(call.scores_BHQK) * cast(call.visible_B1QK, DType::f32), call.v_BHKD);
}

Tensor has_no_mask(const Call& call) { return matmul(softmax(call.scores_BHQK), call.v_BHKD); }

Tensor forgets_everything_but_causality(const Call& call) {
  const AttentionProbe& probe = call.probe;
  if (probe.keys <= 64) return right(call);
  return right(masked_by(call, [&](int64_t, int64_t, int64_t q, int64_t k) {
    return !probe.causal || k <= probe.query_offset + q;
  }));
}

Tensor tiles_key_heads(const Call& call) {
  const AttentionProbe& probe = call.probe;
  const auto tiled = [&](const std::vector<float>& values) {
    const Tensor given =
        tensor(values, {probe.batch, probe.key_heads, probe.keys, probe.head_size});
    const std::vector<Tensor> copies(static_cast<size_t>(probe.heads / probe.key_heads), given);
    return cat(copies, 1);
  };
  return right({probe, scores_of(probe, tiled(probe.k)), tiled(probe.v), call.visible_B1QK});
}

// Scores with the scale to the power of `uses`, then capped.
Tensor scales(const Call& call, int uses) {
  const AttentionProbe& probe = call.probe;
  const double scale = std::pow(static_cast<double>(probe.head_size), -0.5 * uses);
  const Tensor q = tensor(probe.q, {probe.batch, probe.heads, probe.queries, probe.head_size});
  const Tensor scores = matmul(q, transpose(repeated(probe.k, probe), -2, -1)) * scale;
  Call turned = call;
  turned.scores_BHQK =
      probe.softcap == 0 ? scores : tanh(scores * (1 / probe.softcap)) * probe.softcap;
  return right(turned);
}

Tensor has_no_softcap(const Call& call) {
  AttentionProbe plain = call.probe;
  plain.softcap = 0;
  Call turned = call;
  turned.scores_BHQK = scores_of(plain, repeated(plain.k, plain));
  return right(turned);
}

Tensor overflows(const Call& call) {
  const Tensor raised = exp(lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30));
  const Tensor sums = sum(raised, {-1}, KeepDim::yes);
  const Tensor empty_rows =
      equal(amax(cast(call.visible_B1QK, DType::f32), {-1}, KeepDim::yes), zeros({1}));
  return where(empty_rows, zeros({1}), mixed(raised / sums, call));
}

Tensor makes_nan_of_empty_rows(const Call& call) {
  return mixed(softmax(lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, kMinusInfinity)),
               call);
}

Tensor makes_means_of_empty_rows(const Call& call) {
  return mixed(softmax(lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30)), call);
}

Tensor lets_nan_through(const Call& call) {
  const Tensor masked = lowest_where_hidden(call.scores_BHQK, call.visible_B1QK, -1e30);
  return matmul(where(call.visible_B1QK, softmax(masked), zeros({1})), call.v_BHKD);
}

// One key after the other: each weight is rounded, and the sum after each. In f64 but for that: a
// score in f32 may round a weight the other way.
Tensor sums_in_bfloat16(const Call& call) {
  const AttentionProbe& probe = call.probe;
  const Tensor q = tensor(probe.q, {probe.batch, probe.heads, probe.queries, probe.head_size});
  const double scale = 1 / std::sqrt(static_cast<double>(probe.head_size));
  Tensor scores =
      matmul(cast(q, DType::f64), transpose(cast(repeated(probe.k, probe), DType::f64), -2, -1)) *
      scale;
  if (probe.softcap != 0) scores = tanh(scores * (1 / probe.softcap)) * probe.softcap;
  const Tensor hides = full({1}, -1e300, DType::f64);
  const auto masked = where(call.visible_B1QK, scores, hides).to_vector<double>();
  std::vector<float> weights(masked.size());
  const auto K = static_cast<size_t>(probe.keys);
  for (size_t row = 0; row < masked.size(); row += K) {
    const double largest = *std::max_element(&masked[row], &masked[row] + K);
    if (largest == -1e300) continue;  // nothing is visible
    bfloat16 total(0.0);
    std::vector<double> raised;
    for (size_t k = 0; k < K; ++k) {
      raised.push_back(static_cast<double>(bfloat16(std::exp(masked[row + k] - largest))));
      total = bfloat16(static_cast<double>(total) + raised.back());
    }
    for (size_t k = 0; k < K; ++k) {
      weights[row + k] = static_cast<float>(raised[k] / static_cast<double>(total));
    }
  }
  return mixed(tensor(weights, call.scores_BHQK.shape()), call);
}

// Code with the mistake of each row of attention_mistakes(), by what the row says.
const std::map<std::string, Implementation>& implementations() {
  using Probe = AttentionProbe;
  static const std::map<std::string, Implementation> all = {
      {"The mask keeps what it should hide.", keeps_what_it_should_hide},
      {"The padding mask lies along the queries.", pads_the_queries},
      {"A padding mask [B, K] is read as [Q, K].", reads_the_batch_as_queries},
      {"A mask [B, Q, K] is read as [H, Q, K].", reads_the_batch_as_heads},
      {"The hidden keys get 1 added to their scores.", adds_forbidden},
      {"The visible keys get 1 added to their scores.", adds_keep},
      {"Hidden scores are multiplied to 0, which is not hidden.", multiplies_scores},
      {"Weights are masked after the softmax and do not sum to 1.", multiplies_weights},
      {"No mask is applied at all.", has_no_mask},
      {"Padding is ignored.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.key_valid.clear(); }); }},
      {"Causality counts from the first query, whatever the cache holds.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.query_offset = 0; }); }},
      {"The window holds one key too many.",
       [](const Call& c) {
         return with_mask_of(c, [](Probe& p) { p.window += p.window > 0 ? 1 : 0; });
       }},
      {"The window holds one key too few.",
       [](const Call& c) {
         return with_mask_of(c, [](Probe& p) { p.window -= p.window > 0 ? 1 : 0; });
       }},
      {"Packed documents see each other.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.documents.clear(); }); }},
      {"Key heads are tiled where they should be repeated.", tiles_key_heads},
      {"Scores are divided by sqrt(D) twice.", [](const Call& c) { return scales(c, 2); }},
      {"Scores are never divided by sqrt(D).", [](const Call& c) { return scales(c, 0); }},
      {"The soft cap is left out.", has_no_softcap},
      {"The window is left out.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.window = 0; }); }},
      {"The prefix is left out.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.prefix = 0; }); }},
      {"The sinks are left out.",
       [](const Call& c) { return with_mask_of(c, [](Probe& p) { p.sinks = 0; }); }},
      {"Beyond 64 keys causality counts and nothing else of the mask.",
       forgets_everything_but_causality},
      {"exp is taken of scores as they stand, which overflows.", overflows},
      {"A row that sees no key becomes NaN.", makes_nan_of_empty_rows},
      {"A row that sees no key becomes the mean of all values.", makes_means_of_empty_rows},
      {"A hidden value takes part with weight 0, and 0 times NaN is NaN.", lets_nan_through},
      {"Weights and their sum are rounded to bfloat16.", sums_in_bfloat16},
  };
  return all;
}

class AttentionJudge : public testing::Test {
 protected:
  AttentionVerdict judge(const Implementation& implementation) {
    return judge_attention(attention_probes(), answers(implementation));
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

// A row of attention_mistakes() that no code above makes has no test, and fails.
class AttentionMistakes : public AttentionJudge, public testing::WithParamInterface<size_t> {};

TEST_P(AttentionMistakes, IsNamedAndNoOther) {
  const AttentionMistake& mistake = attention_mistakes()[GetParam()];
  const auto made = implementations().find(mistake.what);
  ASSERT_NE(made, implementations().end()) << "no code makes the mistake '" << mistake.what << "'";
  const AttentionVerdict verdict = judge(made->second);
  EXPECT_GT(verdict.wrong(), 0);
  ASSERT_EQ(verdict.named.size(), 1U)
      << mistake.what << " Nearest: " << (verdict.nearest ? verdict.nearest->what : "none");
  EXPECT_STREQ(verdict.named[0]->what, mistake.what);
}

INSTANTIATE_TEST_SUITE_P(Every, AttentionMistakes,
                         testing::Range(size_t{0}, attention_mistakes().size()));

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
  EXPECT_TRUE(verdict.missing().empty());
}

TEST_F(AttentionJudge, SaysWhatIsMissing) {
  auto given = answers(right);
  given.erase("softcap");
  given.erase("causal");
  given.erase("sinks");
  EXPECT_EQ(judge_attention(attention_probes(), given).missing(),
            (std::vector<std::string>{"causal", "sinks"}));
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
