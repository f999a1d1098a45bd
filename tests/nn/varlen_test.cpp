#include "nn/varlen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/functional.h"
#include "tests/io/scratch_directory.h"
#include "tests/support/compare.h"

namespace faultline::nn {
namespace {

using testing::HasSubstr;

constexpr double kEps = 0x1p-23;
constexpr SequenceMask kAll{.causal = false};

Tensor bounds(std::initializer_list<int32_t> ends) { return tensor<int32_t>(ends); }

// Equal scores over six packed tokens with the values 1 2 4 100 200 400, of which the last query
// of each sequence of three sees its own three.
std::vector<double> packed(const SequenceBounds& lengths) {
  const Tensor v = tensor<float>({1, 2, 4, 100, 200, 400}, {6, 1, 1});
  return attention_varlen(zeros({6, 1, 1}), zeros({6, 1, 1}), v, lengths, kAll).to_vector<double>();
}

TEST(Varlen, SequencesDoNotSeeEachOther) {
  const auto y = packed({bounds({0, 3, 6}), bounds({0, 3, 6}), 3, 3});
  const std::vector<double> expected{7.0 / 3, 7.0 / 3, 7.0 / 3, 700.0 / 3, 700.0 / 3, 700.0 / 3};
  EXPECT_TRUE(test::close(y, expected, {.relative = 4 * kEps}));
}

// What a kernel does with each of these is read another request, or memory of somebody else.
TEST(Varlen, RefusesBoundsThatLie) {
  const auto refusal = [](const Tensor& q, const Tensor& k, int64_t max_q = 0, int64_t max_k = 0) {
    return error_of<InvalidArgument>([&] { packed({q, k, max_q, max_k}); });
  };
  const Tensor right = bounds({0, 3, 6});
  EXPECT_THAT(refusal(right, bounds({0, 3, 7})),
              HasSubstr("cu_seqlens_k must end with the number of tokens, 6, got 7"));
  EXPECT_THAT(refusal(right, bounds({0, 3, 5})), HasSubstr("must end with"));
  EXPECT_THAT(refusal(bounds({0, 3, 5}), right), HasSubstr("cu_seqlens_q must end with"));
  EXPECT_THAT(refusal(bounds({1, 3, 6}), right), HasSubstr("must begin with 0, got 1"));
  EXPECT_THAT(refusal(bounds({0, 4, 3, 6}), bounds({0, 3, 6, 6})),
              HasSubstr("goes from 4 to 3 at sequence 1"));
  EXPECT_THAT(refusal(right, bounds({0, -1, 6})), HasSubstr("must not go down"));
  EXPECT_THAT(refusal(right, bounds({0, 6})), HasSubstr("2 sequences, cu_seqlens_k has 1"));
  EXPECT_THAT(refusal(right, right, 2), HasSubstr("length of 3, above the stated maximum of 2"));
  EXPECT_THAT(refusal(right, right, 0, 2), HasSubstr("cu_seqlens_k"));
  EXPECT_THAT(refusal(Tensor(), right), HasSubstr("cu_seqlens_q must be i32"));
  EXPECT_THAT(refusal(tensor<int64_t>({0, 3, 6}), right), HasSubstr("must be i32 [S + 1]"));
  EXPECT_THAT(refusal(tensor<int32_t>({}), right), HasSubstr("must be i32 [S + 1]"));
  EXPECT_THAT(refusal(tensor<int32_t>({0, 6}, {1, 2}), right), HasSubstr("must be i32 [S + 1]"));
}

TEST(Varlen, UnlikeLengthsNeedAnAlignment) {
  const Tensor q = zeros({2, 1, 1});
  const Tensor k = zeros({5, 1, 1});
  const Tensor v = tensor<float>({1, 2, 4, 8, 16}, {5, 1, 1});
  const SequenceBounds one{bounds({0, 2}), bounds({0, 5})};
  const auto run = [&](const SequenceMask& mask) {
    return attention_varlen(q, k, v, one, mask).to_vector<double>();
  };
  EXPECT_THAT(error_of<InvalidArgument>([&] { run({}); }), HasSubstr("CausalAlign::top_left"));
  const test::Tolerance rounding{.relative = 4 * kEps};
  EXPECT_TRUE(test::close(run({.align = CausalAlign::top_left}), {1, 1.5}, rounding));
  EXPECT_TRUE(test::close(run({.align = CausalAlign::bottom_right}), {3.75, 6.2}, rounding));
  EXPECT_TRUE(
      test::close(run({.align = CausalAlign::bottom_right, .window = 2}), {6, 12}, rounding));
}

TEST(Varlen, IsTheBatchOfItsSequencesWithGradientsAndGroups) {
  const Tensor q = normal({7, 4, 8}, 0, 1, 1, 1, DType::f64);
  const Tensor k = normal({7, 2, 8}, 0, 1, 1, 2, DType::f64);
  const Tensor v = normal({7, 2, 8}, 0, 1, 1, 3, DType::f64);
  for (const Tensor& x : {q, k, v}) set_requires_grad(x);
  // An empty sequence among them.
  const Tensor ends = bounds({0, 3, 3, 7});
  const Tensor y = attention_varlen(q, k, v, {ends, ends}, {});
  const Tensor dy = normal({7, 4, 8}, 0, 1, 1, 4, DType::f64);
  backward(y, dy);
  std::vector<Tensor> found;
  for (const Tensor& x : {q, k, v}) {
    found.push_back(clone(gradient(x)));
    clear_gradient(x);
  }
  // The same as one packed row whose documents are the sequences.
  const auto row = [](const Tensor& x) {
    return permute(reshape(x, {1, 7, x.size(1), x.size(2)}), {0, 2, 1, 3});
  };
  const Mask mask{.documents = tensor<int32_t>({0, 0, 0, 2, 2, 2, 2}, {1, 7})};
  const Tensor whole =
      reshape(permute(attention(row(q), row(k), row(v), mask), {0, 2, 1, 3}), {7, 4, 8});
  backward(whole, dy);
  const test::Tolerance rounding{.absolute = 64 * 0x1p-52};
  EXPECT_TRUE(test::close(y, whole.detach(), rounding));
  size_t i = 0;
  for (const Tensor& x : {q, k, v}) EXPECT_TRUE(test::close(found[i++], gradient(x), rounding));
}

TEST(Varlen, EachSequenceDropsAsItWouldAlone) {
  const Tensor key = tensor<int64_t>({9, 4, 20});
  const AttentionOptions options{.dropout = {key, 0.5, 3}};
  const Tensor x = normal({6, 2, 4}, 0, 1, 1, 1);
  const Tensor y = attention_varlen(x, x, x, {bounds({0, 3, 6}), bounds({0, 3, 6})}, {}, options);
  const AttentionOptions second{.dropout = {tensor<int64_t>({9, 4, 21}), 0.5, 3}};
  const Tensor tail = permute(reshape(slice(x, 0, 3, 6), {1, 3, 2, 4}), {0, 2, 1, 3});
  const Tensor alone = permute(attention(tail, tail, tail, {}, second), {0, 2, 1, 3});
  EXPECT_TRUE(test::same_bits(contiguous(slice(y, 0, 3, 6)), reshape(alone, {3, 2, 4})));
}

TEST(Varlen, NoTokensGiveNoOutput) {
  const Tensor none = zeros({0, 2, 4});
  const Tensor y = attention_varlen(none, none, none, {bounds({0}), bounds({0})}, {});
  EXPECT_EQ(y.shape(), (Shape{0, 2, 4}));
}

// ---- pages --------------------------------------------------------------------------------------

// Pages of two slots; page p holds the values 10 p and 10 p + 1, and equal keys.
PagedKeys pages(std::initializer_list<int32_t> table, int64_t rows,
                std::initializer_list<int32_t> lengths) {
  std::vector<float> values;
  for (int p = 0; p < 8; ++p) {
    values.push_back(static_cast<float>(10 * p));
    values.push_back(static_cast<float>(10 * p + 1));
  }
  const auto columns = static_cast<int64_t>(table.size()) / rows;
  return {.k_pool = zeros({8, 2, 1, 1}),
          .v_pool = tensor(values, {8, 2, 1, 1}),
          .page_table = tensor<int32_t>(table, {rows, columns}),
          .lengths = tensor<int32_t>(lengths)};
}

std::vector<double> attended(const PagedKeys& keys, int64_t queries = 1) {
  const int64_t rows = keys.page_table.size(0);
  return attention_paged(zeros({rows, 1, queries, 1}), keys).to_vector<double>();
}

TEST(Paged, ARowReadsItsOwnPagesInTheirOrder) {
  const test::Tolerance rounding{.relative = 4 * kEps};
  // Row 0: 50 51 10; row 1: 20 21 30 31.
  EXPECT_TRUE(test::close(attended(pages({5, 1, 2, 3}, 2, {3, 4})), {37, 25.5}, rounding));
  // Two queries, the last two positions: the first does not see the last key.
  EXPECT_TRUE(test::close(attended(pages({5, 1, 2, 3}, 2, {3, 4}), 2), {50.5, 37, 71.0 / 3, 25.5},
                          rounding));
  // A row that is not in use may name any pages, as may the columns beyond a row's length.
  EXPECT_TRUE(test::close(attended(pages({5, -1, 99, 5}, 2, {2, 0})), {50.5, 0}, rounding));
}

TEST(Paged, RefusesATableThatWouldReadSomebodyElse) {
  const auto refusal = [](const PagedKeys& keys, int64_t queries = 1) {
    return error_of<InvalidArgument>([&] { attended(keys, queries); });
  };
  // Two pages of two slots cannot hold five keys: the third page would be row 1's first.
  EXPECT_THAT(refusal(pages({5, 1, 2, 3}, 2, {5, 2})),
              HasSubstr("row 0 has 5 keys, but its 2 pages of 2 hold 4; give the table 3 columns"));
  EXPECT_THAT(refusal(pages({5, 8, 2, 3}, 2, {4, 2})),
              HasSubstr("row 0 uses page 8, but the pool has pages 0 to 7"));
  EXPECT_THAT(refusal(pages({5, -1, 2, 3}, 2, {3, 2})), HasSubstr("page -1"));
  EXPECT_THAT(refusal(pages({5, 1, 1, 3}, 2, {4, 2})),
              HasSubstr("page 1 belongs to row 0 and to row 1"));
  EXPECT_THAT(refusal(pages({5, 5}, 1, {4})), HasSubstr("page 5 belongs to row 0 and to row 0"));
  EXPECT_THAT(refusal(pages({5, 1}, 1, {-1})), HasSubstr("length of -1"));
  EXPECT_THAT(refusal(pages({5, 1}, 1, {1}), 2), HasSubstr("1 keys, fewer than its 2 queries"));
  PagedKeys keys = pages({5, 1, 2, 3}, 2, {4, 2});
  keys.lengths = tensor<int64_t>({4, 2});
  EXPECT_THAT(refusal(keys), HasSubstr("lengths must be i32 [2]"));
  keys = pages({5, 1, 2, 3}, 2, {4, 2});
  keys.page_table = reshape(keys.page_table, {4});
  EXPECT_THROW(attention_paged(zeros({2, 1, 1, 1}), keys), InvalidArgument);
}

TEST(Paged, PagesMayBeSharedWhenThatIsSaid) {
  PagedKeys keys = pages({5, 1, 5, 3}, 2, {4, 3});
  EXPECT_THROW(attended(keys), InvalidArgument);
  keys.sharing = PageSharing::allowed;
  EXPECT_TRUE(test::close(attended(keys), {30.5, 131.0 / 3}, {.relative = 4 * kEps}));
}

TEST(Paged, IsAttentionOverTheSameKeysInOnePiece) {
  const Tensor pool_k = normal({6, 4, 2, 8}, 0, 1, 1, 1, DType::f64);
  const Tensor pool_v = normal({6, 4, 2, 8}, 0, 1, 1, 2, DType::f64);
  const Tensor q = normal({1, 4, 3, 8}, 0, 1, 1, 3, DType::f64);
  const Tensor y = attention_paged(
      q, {pool_k, pool_v, tensor<int32_t>({4, 0, 3}, {1, 3}), tensor<int32_t>({10})});
  const auto whole = [](const Tensor& pool) {
    const Tensor rows = index_select(pool, 0, tensor<int32_t>({4, 0, 3}));
    return permute(reshape(slice(reshape(rows, {12, 2, 8}), 0, 0, 10), {1, 10, 2, 8}),
                   {0, 2, 1, 3});
  };
  const Tensor expected =
      attention(q, whole(pool_k), whole(pool_v), causal_mask(3, 10, CausalAlign::bottom_right));
  EXPECT_TRUE(test::same_bits(y, expected));
}

}  // namespace
}  // namespace faultline::nn
