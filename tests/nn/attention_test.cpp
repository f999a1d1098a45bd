#include "nn/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "nn/mask_predicate.h"
#include "tests/io/scratch_directory.h"
#include "tests/support/compare.h"

// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
namespace faultline::nn {
namespace {

using testing::HasSubstr;
using Rule = MaskPredicate;

constexpr double kEps = 0x1p-23;

Tensor bools(const std::vector<uint8_t>& values, const Shape& shape) {
  return cast(tensor(values, shape), DType::boolean);
}

// ---- the visibility probe: equal scores and the values 2^j --------------------------------------

// Row by row what attention gives when all scores are 0 and value j is 2^j: the mean of the visible
// powers, which tells the visible set.
std::vector<double> probe(const Mask& mask, const ScoreSizes& sizes, DType dtype = DType::f32,
                          const AttentionOptions& options = {.scale = 1.0}) {
  std::vector<double> powers;
  for (int64_t k = 0; k < sizes.keys; ++k) powers.push_back(std::exp2(static_cast<double>(k)));
  const Tensor v_1 = cast(tensor(powers, {1, 1, sizes.keys, 1}), dtype);
  const Tensor v = expand(v_1, {sizes.batch, sizes.heads, sizes.keys, 1});
  const Tensor q = zeros({sizes.batch, sizes.heads, sizes.queries, 1}, dtype);
  const Tensor k = zeros({sizes.batch, sizes.heads, sizes.keys, 1}, dtype);
  return attention(q, k, v, mask, options).to_vector<double>();
}

// A weight 1 / n is rounded to half an ulp, each product and sum again: with up to 8 keys within 4
// ulps of the mean.
constexpr test::Tolerance kProbe{.relative = 4 * kEps};

TEST(VisibilityProbe, GivesTheExactMeansOfACausalPrefix) {
  const std::vector<double> means{1, 1.5, 7.0 / 3, 3.75, 31.0 / 5, 10.5, 127.0 / 7, 31.875};
  EXPECT_TRUE(test::close(probe({}, {1, 1, 8, 8}, DType::f64), means, {.relative = 1e-15}));
  for (const auto which : {AttentionImplementation::math, AttentionImplementation::flash}) {
    const AttentionOptions options{.scale = 1.0, .policy = AttentionPolicy::require(which)};
    for (const auto& [dtype, eps] : {std::pair(DType::f32, kEps), std::pair(DType::f16, 0x1p-10),
                                     std::pair(DType::bf16, 0x1p-7)}) {
      EXPECT_TRUE(
          test::close(probe({}, {1, 1, 8, 8}, dtype, options), means, {.relative = 4 * eps}))
          << name(which) << " " << name(dtype);
    }
  }
}

TEST(VisibilityProbe, PaddingBelongsToTheKeysOfItsBatch) {
  const double of_length[] = {0, 1, 1.5, 7.0 / 3, 3.75};
  const std::vector<int64_t> lengths{4, 1, 3, 2};
  const Rule text = Rule::padding(PaddingSide::right, lengths, 4);
  std::vector<double> expected;
  for (const int64_t length : lengths) {
    for (int row = 0; row < 2 * 4; ++row) expected.push_back(of_length[length]);
  }
  const ScoreSizes sizes{4, 2, 4, 4};  // as many sequences as queries
  EXPECT_TRUE(test::close(probe(text.over({sizes}), sizes), expected, kProbe));
}

// As many sequences as heads: a mask [B, Q, K] that broadcasts would bind its batch to the heads.
TEST(VisibilityProbe, AMaskOfTheBatchIsTheSameForItsHeads) {
  const ScoreSizes sizes{2, 2, 4, 4};
  const Tensor keep = bools({1, 1, 1, 1, 1, 1, 0, 0}, {2, 4});
  const Tensor keep_BQK = contiguous(expand(reshape(keep, {2, 1, 4}), {2, 4, 4}));
  const Mask mask =
      mask_from_tensor(keep_BQK, {Axis::batch, Axis::query, Axis::key}, MaskKind::keep, sizes);
  std::vector<double> expected(8, 3.75);
  expected.resize(16, 1.5);
  EXPECT_TRUE(test::close(probe(mask, sizes), expected, kProbe));
}

TEST(VisibilityProbe, PastKeysCountUnlessTheOffsetIsZeroOnPurpose) {
  EXPECT_TRUE(test::close(probe(causal_mask(2, 5, CausalAlign::bottom_right), {1, 1, 2, 5}),
                          {3.75, 6.2}, kProbe));
  EXPECT_TRUE(
      test::close(probe(causal_mask(2, 5, CausalAlign::top_left), {1, 1, 2, 5}), {1, 1.5}, kProbe));
  EXPECT_TRUE(test::close(probe(causal_mask(1, 5, CausalAlign::bottom_right), {1, 1, 1, 5}), {6.2},
                          kProbe));
  EXPECT_TRUE(test::close(probe(causal_mask(5, 2, CausalAlign::bottom_right), {1, 1, 5, 2}),
                          {0, 0, 0, 1, 1.5}, kProbe));
  EXPECT_TRUE(test::close(probe(causal_mask(5, 2, CausalAlign::top_left), {1, 1, 5, 2}),
                          {1, 1.5, 1.5, 1.5, 1.5}, kProbe));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                probe({}, {1, 1, 2, 5});
              }),
              HasSubstr("set query_offset to 3"));
}

TEST(VisibilityProbe, PackedDocumentsDoNotMeet) {
  const Mask mask{.documents = tensor<int32_t>({0, 0, 1, 1}, {1, 4})};
  EXPECT_TRUE(test::close(probe(mask, {1, 1, 4, 4}), {1, 1.5, 4, 6}, kProbe));
}

TEST(VisibilityProbe, AWindowOfFourHoldsFourKeys) {
  EXPECT_NEAR(probe({.window = 4}, {1, 1, 8, 8})[7], 60, 60 * 4 * kEps);
  EXPECT_NEAR(probe({.window = 5}, {1, 1, 8, 8})[7], 49.6, 49.6 * 4 * kEps);
  EXPECT_NEAR(probe({.window = 4, .sinks = 1}, {1, 1, 8, 8})[7], 241.0 / 5, 241 * kEps);
  EXPECT_NEAR(probe({.prefix = 4}, {1, 1, 8, 8})[0], 3.75, 4 * 4 * kEps);
}

TEST(VisibilityProbe, RowsThatSeeNothingGiveZerosInEveryForm) {
  const ScoreSizes sizes{1, 1, 4, 4};
  const Mask padding{.causal = false, .key_valid = zeros({1, 4}, DType::boolean)};
  EXPECT_EQ(probe(padding, sizes), (std::vector<double>{0, 0, 0, 0}));
  const Mask keep =
      mask_from_tensor(zeros({4}, DType::boolean), {Axis::key}, MaskKind::keep, sizes);
  EXPECT_EQ(probe(keep, sizes), (std::vector<double>{0, 0, 0, 0}));
  // What the tensor keeps, causality hides, and the other way about.
  Mask both = mask_from_tensor(bools({0, 1, 1, 0}, {4}), {Axis::key}, MaskKind::keep, sizes);
  both.causal = true;
  EXPECT_TRUE(test::close(probe(both, sizes), {0, 2, 3, 3}, kProbe));
}

// The second cause of silent zeros and ones: masks as numbers. As keep and as additive masks the
// same triangle gives the same rows, in every dtype; 16-bit means are exact to their 8 or 11 bits.
TEST(VisibilityProbe, KeepAndAdditiveTrianglesAgreeInEveryDtype) {
  const ScoreSizes sizes{1, 1, 4, 4};
  const std::vector<double> means{1, 1.5, 7.0 / 3, 3.75};
  const std::vector<uint8_t> triangle{1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1};
  const Tensor keep = bools(triangle, {4, 4});
  for (const auto& [dtype, eps] :
       {std::pair(DType::f64, 0x1p-52), std::pair(DType::f32, kEps), std::pair(DType::f16, 0x1p-10),
        std::pair(DType::bf16, 0x1p-7)}) {
    const Mask kept = mask_from_tensor(keep, {Axis::query, Axis::key}, MaskKind::keep, sizes);
    EXPECT_TRUE(test::close(probe(kept, sizes, dtype), means, {.relative = 4 * eps}))
        << name(dtype);
    const Tensor added = where(keep, zeros({}, dtype), full({}, -INFINITY, dtype));
    const Mask additive =
        mask_from_tensor(added, {Axis::query, Axis::key}, MaskKind::additive, sizes);
    EXPECT_TRUE(test::close(probe(additive, sizes, dtype), means, {.relative = 4 * eps}))
        << name(dtype);
  }
}

// ---- against the formula ------------------------------------------------------------------------

struct Case {
  ScoreSizes sizes;
  int64_t key_heads;
  int64_t head_size;
  Mask mask;
  double softcap = 0;
};

// softmax(cap(scale q k) + bias) over the visible keys, times v, as it is written.
std::vector<double> formula(const Case& c, const std::vector<double>& q,
                            const std::vector<double>& k, const std::vector<double>& v,
                            double scale) {
  const VisiblePairs visible(c.mask, c.sizes);
  const int64_t D = c.head_size;
  std::vector<double> bias;
  if (c.mask.bias.defined()) bias = c.mask.bias.to_vector<double>();
  std::vector<double> y;
  for (int64_t b = 0; b < c.sizes.batch; ++b) {
    for (int64_t h = 0; h < c.sizes.heads; ++h) {
      const int64_t g = h / (c.sizes.heads / c.key_heads);
      const auto row_of = [&](int64_t head, int64_t heads, int64_t rows, int64_t row) {
        return static_cast<size_t>(((b * heads + head) * rows + row) * D);
      };
      for (int64_t i = 0; i < c.sizes.queries; ++i) {
        std::vector<double> sums(static_cast<size_t>(D), 0.0);
        double total = 0;
        for (int64_t j = 0; j < c.sizes.keys; ++j) {
          if (!visible(b, h, i, j)) continue;
          const size_t at_q = row_of(h, c.sizes.heads, c.sizes.queries, i);
          const size_t at_k = row_of(g, c.key_heads, c.sizes.keys, j);
          double score = 0;
          for (size_t d = 0; d < sums.size(); ++d) score += q[at_q + d] * k[at_k + d];
          score *= scale;
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          if (!bias.empty()) score += bias[static_cast<size_t>(i * c.sizes.keys + j)];
          const double weight = std::exp(score);
          total += weight;
          for (size_t d = 0; d < sums.size(); ++d) sums[d] += weight * v[at_k + d];
        }
        for (const double sum : sums) y.push_back(total == 0 ? 0 : sum / total);
      }
    }
  }
  return y;
}

std::vector<Case> cases() {
  const Tensor valid = bools({1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1}, {2, 7});
  const Tensor documents = tensor<int32_t>({0, 0, 0, 1, 1, 2, 2, 0, 1, 1, 1, 1, 1, 2}, {2, 7});
  const ScoreSizes square{2, 6, 7, 7};
  const Tensor bias = normal({1, 1, 7, 7}, 0, 1, 3, 3, DType::f64);
  const Rule odd =
      Rule::rule([](const MaskPoint& p) { return (p.head + p.query * p.key) % 3 != 1; });
  return {
      {square, 6, 4, {}},
      {square, 3, 4, {.key_valid = valid}},
      {square, 2, 4, {.documents = documents}, 2.5},
      {square, 1, 4, {.window = 3, .sinks = 1}},
      {square, 6, 4, {.prefix = 3}},
      {square, 2, 4, {.causal = false, .key_valid = valid, .documents = documents, .window = 2}},
      {square, 3, 4, odd.over({square}), 1.5},
      {square, 3, 4, {.causal = true, .bias = bias}, 1.5},
      {{2, 6, 2, 7}, 2, 4, causal_mask(2, 7, CausalAlign::bottom_right)},
      {{2, 6, 7, 2}, 2, 4, causal_mask(7, 2, CausalAlign::bottom_right)},
  };
}

TEST(Attention, IsTheFormulaInF64AndItsRoundingInF32) {
  for (size_t n = 0; n < cases().size(); ++n) {
    const Case c = cases()[n];
    const ScoreSizes& s = c.sizes;
    const Tensor q = normal({s.batch, s.heads, s.queries, c.head_size}, 0, 1, 1, n);
    const Tensor k = normal({s.batch, c.key_heads, s.keys, c.head_size}, 0, 1, 2, n);
    const Tensor v = normal({s.batch, c.key_heads, s.keys, c.head_size}, 0, 1, 3, n);
    const auto expected =
        formula(c, q.to_vector<double>(), k.to_vector<double>(), v.to_vector<double>(), 0.5);
    const Tensor exact = attention(cast(q, DType::f64), cast(k, DType::f64), cast(v, DType::f64),
                                   c.mask, {.softcap = c.softcap});
    // Scores below 10 are rounded by 10 u each; a few operations more follow: 64 u in all.
    EXPECT_TRUE(test::close(exact.to_vector<double>(), expected, {.absolute = 64 * 0x1p-52})) << n;
    for (const auto which : {AttentionImplementation::math, AttentionImplementation::flash}) {
      const AttentionOptions options{.softcap = c.softcap,
                                     .policy = AttentionPolicy::prefer(which)};
      const Tensor y = attention(q, k, v, c.mask, options);
      EXPECT_TRUE(test::close(y.to_vector<double>(), expected, {.absolute = 64 * kEps}))
          << n << " " << name(which);
    }
  }
}

// y, dq, dk and dv by one implementation.
std::vector<Tensor> both_ways(AttentionImplementation which, const std::vector<Tensor>& qkv,
                              const Tensor& dy, const Mask& mask, AttentionOptions options) {
  options.policy = AttentionPolicy::require(which);
  std::vector<Tensor> results;
  for (const Tensor& x : qkv) set_requires_grad(x);
  results.push_back(attention(qkv[0], qkv[1], qkv[2], mask, options));
  backward(results[0], dy);
  for (const Tensor& x : qkv) {
    results.push_back(clone(gradient(x)));
    clear_gradient(x);
  }
  return results;
}

TEST(Flash, GivesWhatMathGivesForwardAndBackwardDropoutIncluded) {
  const Tensor key = tensor<int64_t>({5, 3, 17});
  for (size_t n = 0; n < cases().size(); ++n) {
    const Case c = cases()[n];
    if (c.mask.keep.defined() || c.mask.bias.defined()) continue;
    const ScoreSizes& s = c.sizes;
    const std::vector<Tensor> qkv{normal({s.batch, s.heads, s.queries, c.head_size}, 0, 1, 1, n),
                                  normal({s.batch, c.key_heads, s.keys, c.head_size}, 0, 1, 2, n),
                                  normal({s.batch, c.key_heads, s.keys, c.head_size}, 0, 1, 3, n)};
    const Tensor dy = normal(qkv[0].shape(), 0, 1, 4, n);
    for (const double p : {0.0, 0.5}) {
      const AttentionOptions options{.softcap = c.softcap, .dropout = {key, p, 7}};
      const auto math = both_ways(AttentionImplementation::math, qkv, dy, c.mask, options);
      const auto flash = both_ways(AttentionImplementation::flash, qkv, dy, c.mask, options);
      for (size_t i = 0; i < math.size(); ++i) {
        double largest = 1;
        for (const double x : math[i].to_vector<double>()) largest = std::max(largest, std::abs(x));
        // Each is within 64 u of the exact result, as above; gradients pass twice as many steps.
        EXPECT_TRUE(
            test::close(flash[i].detach(), math[i].detach(), {.absolute = 4 * 64 * kEps * largest}))
            << "case " << n << ", dropout " << p << ", result " << i;
      }
    }
  }
}

TEST(Attention, ScaleIsAppliedOnce) {
  // Head size 64 and raw products of 64 and 0: the weight of the first is 1 / (1 + exp(-8)).
  const Tensor q = ones({1, 1, 1, 64}, DType::f64);
  const Tensor rows[] = {ones({1, 1, 1, 64}, DType::f64), zeros({1, 1, 1, 64}, DType::f64)};
  const Tensor v = tensor<double>({1, 0}, {1, 1, 2, 1});
  const Mask all{.causal = false};
  const auto weight = [&](const AttentionOptions& options) {
    return attention(q, cat(rows, 2), v, all, options).item<double>();
  };
  EXPECT_NEAR(weight({}), 0.999665, 5e-7);
  EXPECT_NEAR(weight({.scale = 1.0 / 64}), 0.731059, 5e-7);
  EXPECT_NEAR(weight({.scale = 1.0}), 1, 1e-15);
  // A softcap of 50 makes a score of 100 50 tanh(2) = 48.2014.
  const double capped = 50 * std::tanh(2.0);
  EXPECT_NEAR(weight({.scale = 100.0 / 64, .softcap = 50}), 1 / (1 + std::exp(-capped)), 1e-15);
  EXPECT_NEAR(weight({.scale = 4.0 / 64, .softcap = 2}), 1 / (1 + std::exp(-2 * std::tanh(2.0))),
              1e-15);
}

// ---- shared key heads ---------------------------------------------------------------------------

// 128 x 23 x 23 = 67712 is no f16 number; the scaled score 5985 is. Both keys score the same, so
// that the second query takes the mean. An f16 result is rounded to 2^-11 of itself, weights and
// sums too: 4 in all. Of dk, the score's derivative is 0.25 (sum of dy v_0 - sum of dy v_1) = -+32.
TEST(Attention, KeepsProductsThatLeaveTheRangeOfF16) {
  constexpr int64_t kD = 128;
  const double dk = 32 * 23 / std::sqrt(static_cast<double>(kD));
  std::vector<double> expected_y(kD, 1.0), expected_dk(kD, -dk), expected_dv(kD, 1.5);
  expected_y.resize(2 * kD, 1.5);
  expected_dk.resize(2 * kD, dk);
  expected_dv.resize(2 * kD, 0.5);
  for (const auto which : {AttentionImplementation::math, AttentionImplementation::flash}) {
    for (const bool is_cast : {false, true}) {
      const DType dtype = is_cast ? DType::f32 : DType::f16;
      Context& context = Context::current();
      const Scoped<std::optional<DType>> autocast(
          context.autocast, is_cast ? std::optional(DType::f16) : std::nullopt);
      const Tensor q = full({1, 1, 2, kD}, 23, dtype);
      const Tensor k = full({1, 1, 2, kD}, 23, dtype);
      const Tensor v =
          contiguous(expand(cast(tensor<float>({1, 2}, {1, 1, 2, 1}), dtype), {1, 1, 2, kD}));
      for (const Tensor& x : {q, k, v}) set_requires_grad(x);
      const Tensor y = attention(q, k, v, {}, {.policy = AttentionPolicy::require(which)});
      EXPECT_EQ(y.dtype(), DType::f16);
      backward(y, ones(y.shape(), y.dtype()));
      const test::Tolerance rounding{.relative = 4 * 0x1p-11};
      EXPECT_TRUE(test::close(y.to_vector<double>(), expected_y, rounding)) << name(which);
      EXPECT_TRUE(test::close(gradient(k).to_vector<double>(), expected_dk, rounding))
          << name(which) << is_cast;
      EXPECT_TRUE(test::close(gradient(v).to_vector<double>(), expected_dv, rounding))
          << name(which) << is_cast;
      // The query's derivative is -32 + 32 of each element: products of 8.1 in f16.
      EXPECT_TRUE(test::close(gradient(q).to_vector<double>(), std::vector<double>(2 * kD, 0),
                              {.absolute = 4 * dk * 0x1p-11}))
          << name(which) << is_cast;
    }
  }
}

TEST(GroupedQueries, NeighbouringHeadsShareAKeyHead) {
  const Tensor v = tensor<float>({1, 100}, {1, 2, 1, 1});
  const Tensor y = attention(zeros({1, 4, 1, 1}), zeros({1, 2, 1, 1}), v, {});
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1, 1, 100, 100}));
}

TEST(GroupedQueries, GradientsOfAKeyHeadAreTheSumsOverItsGroup) {
  const Tensor q = normal({2, 4, 5, 3}, 0, 1, 1, 1, DType::f64);
  const Tensor k = normal({2, 2, 5, 3}, 0, 1, 1, 2, DType::f64);
  const Tensor v = normal({2, 2, 5, 3}, 0, 1, 1, 3, DType::f64);
  const Tensor dy = normal({2, 4, 5, 3}, 0, 1, 1, 4, DType::f64);
  const auto heads = tensor<int32_t>({0, 0, 1, 1});
  const Tensor k_each = index_select(k, 1, heads);  // a copy for each query head
  const Tensor v_each = index_select(v, 1, heads);
  for (const Tensor& x : {q, k, v, k_each, v_each}) set_requires_grad(x);
  backward(attention(q, k_each, v_each, {}), dy);
  const Tensor dq = clone(gradient(q));
  clear_gradient(q);
  backward(attention(q, k, v, {}), dy);
  const test::Tolerance rounding{.absolute = 64 * 0x1p-52};
  EXPECT_TRUE(test::close(gradient(q), dq, rounding));
  const auto per_group = [](const Tensor& x) {
    return sum(reshape(gradient(x), {2, 2, 2, 5, 3}), {2});
  };
  EXPECT_TRUE(test::close(gradient(k), per_group(k_each), rounding));
  EXPECT_TRUE(test::close(gradient(v), per_group(v_each), rounding));
}

TEST(GroupedQueries, RefusesHeadsThatDoNotDivide) {
  const auto refusal = error_of<InvalidArgument>([] {
    attention(zeros({1, 12, 2, 4}), zeros({1, 5, 2, 4}), zeros({1, 5, 2, 4}), {});
  });
  EXPECT_THAT(refusal, HasSubstr("12 query heads cannot share 5 key heads (12 mod 5 = 2)"));
  EXPECT_THAT(refusal, HasSubstr("divisor of 12"));
}

// ---- what hidden keys may hold ------------------------------------------------------------------

TEST(KeepTensor, HiddenScoresReachNeitherWeightsNorGradients) {
  const ScoreSizes sizes{1, 1, 2, 3};
  const Mask mask = mask_from_tensor(bools({1, 1, 0, 0, 0, 0}, {2, 3}), {Axis::query, Axis::key},
                                     MaskKind::keep, sizes);
  const float nan = std::nanf("");
  const Tensor scores = tensor<float>({1, 3, nan, INFINITY, nan, 4}, {1, 1, 2, 3});
  set_requires_grad(scores);
  const Tensor weights = AttentionWeightsSeam::standard(scores, mask, 0.5);
  const double w = 1 / (1 + std::exp(-1.0));  // of key 1
  EXPECT_TRUE(
      test::close(weights.to_vector<double>(), {1 - w, w, 0, 0, 0, 0}, {.absolute = 8 * kEps}));
  backward(weights, tensor<float>({0, 1, nan, nan, 1, 1}, {1, 1, 2, 3}));
  const double slope = 0.5 * w * (1 - w);
  EXPECT_TRUE(test::close(gradient(scores).to_vector<double>(), {-slope, slope, 0, 0, 0, 0},
                          {.absolute = 8 * kEps}));
}

TEST(AdditiveMask, IsLearnedThroughSelection) {
  const ScoreSizes sizes{1, 2, 2, 3};
  const Tensor bias = tensor<double>({0.5, -1, -INFINITY}, {3});
  set_requires_grad(bias);
  const Mask mask = mask_from_tensor(bias, {Axis::key}, MaskKind::additive, sizes);
  const Tensor zero = zeros({1, 2, 3, 1}, DType::f64);
  const Tensor v = expand(tensor<double>({1, 5, 7}, {1, 1, 3, 1}), {1, 2, 3, 1});
  const Tensor y = attention(zeros({1, 2, 2, 1}, DType::f64), zero, v, mask);
  const double w = 1 / (1 + std::exp(1.5));
  EXPECT_NEAR(y.to_vector<double>()[0], 1 + 4 * w, 1e-14);
  backward(y, ones(y.shape(), DType::f64));
  // Two heads and two queries are served by each element.
  EXPECT_TRUE(test::close(gradient(bias).to_vector<double>(),
                          {4 * -4 * w * (1 - w), 4 * 4 * w * (1 - w), 0}, {.absolute = 1e-14}));
}

// ---- bad input ----------------------------------------------------------------------------------

TEST(Attention, RefusesTensorsThatDoNotFitTogether) {
  const auto refusal = [](const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
    return error_of<InvalidArgument>([&] { attention(q, k, v, mask); });
  };
  const Tensor x = zeros({1, 2, 3, 4});
  EXPECT_THAT(refusal(zeros({2, 3, 4}), x, x, {}), HasSubstr("takes q [B, H, Q, D]"));
  EXPECT_THAT(refusal(zeros({2, 2, 3, 4}), x, x, {}), HasSubstr("one batch size"));
  EXPECT_THAT(refusal(zeros({1, 2, 3, 5}), x, x, {}), HasSubstr("head size"));
  EXPECT_THAT(refusal(x, x, zeros({1, 2, 5, 4}), {}), HasSubstr("same heads and positions"));
  EXPECT_THAT(refusal(x, x, zeros({1, 2, 3, 4}, DType::f16), {}), HasSubstr("one dtype"));
  EXPECT_THAT(refusal(x, zeros({1, 0, 3, 4}), zeros({1, 0, 3, 4}), {}), HasSubstr("no heads"));
  EXPECT_THAT(refusal(x, x, x, {.key_valid = ones({3, 1}, DType::boolean)}),
              HasSubstr("key_valid"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { attention(x, x, x, {}, {.softcap = -1}); }),
              HasSubstr("softcap"));
}

}  // namespace
}  // namespace faultline::nn
