#include "nn/mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "autograd/functional.h"
#include "nn/mask_predicate.h"
#include "tests/io/scratch_directory.h"

namespace faultline::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Rule = MaskPredicate;

Tensor bools(const std::vector<uint8_t>& values, const Shape& shape) {
  return cast(tensor(values, shape), DType::boolean);
}

// Every pair of a placement judged by the rule itself, in the order [B, H, Q, K].
std::vector<uint8_t> judged(const Rule& rule, const MaskPlacement& at) {
  std::vector<uint8_t> seen;
  const int64_t first = at.query_offset.value_or(at.key_offset);
  for (int64_t b = 0; b < at.sizes.batch; ++b) {
    for (int64_t h = 0; h < at.sizes.heads; ++h) {
      for (int64_t q = 0; q < at.sizes.queries; ++q) {
        for (int64_t k = 0; k < at.sizes.keys; ++k) {
          seen.push_back(rule({b, h, first + q, at.key_offset + k}) ? 1 : 0);
        }
      }
    }
  }
  return seen;
}

std::string seen_row(const Rule& rule, int64_t query, int64_t keys) {
  std::string text;
  for (int64_t k = 0; k < keys; ++k) text += rule({0, 0, query, k}) ? '1' : '.';
  return text;
}

TEST(MaskPredicate, RulesMeanWhatTheySay) {
  EXPECT_EQ(seen_row(Rule(), 2, 6), "111111");
  EXPECT_EQ(seen_row(Rule::causal(), 2, 6), "111...");
  EXPECT_EQ(seen_row(Rule::window(2), 2, 6), ".111..");
  EXPECT_EQ(seen_row(Rule::causal() & Rule::window(2), 3, 6), "..11..");
  EXPECT_EQ(seen_row(Rule::causal() & (Rule::window(2) | Rule::first_keys(1)), 4, 6), "1..11.");
  EXPECT_EQ(seen_row(Rule::causal() | Rule::first_keys(4), 1, 6), "1111..");
  EXPECT_EQ(seen_row(Rule::padding(PaddingSide::right, {4}, 6), 0, 6), "1111..");
  EXPECT_EQ(seen_row(Rule::padding(PaddingSide::left, {4}, 6), 0, 6), "..1111");
  const Tensor documents = tensor<int32_t>({0, 0, 1, 1, 1, 2}, {1, 6});
  EXPECT_EQ(seen_row(Rule::same_document(documents), 3, 6), "..111.");
  EXPECT_EQ(seen_row(Rule::rule([](const MaskPoint& at) { return at.key % 2 == 0; }), 0, 6),
            "1.1.1.");
}

TEST(MaskPredicate, TakesTheFormOfKernelsWhereItFits) {
  const MaskPlacement square{.sizes = {2, 3, 6, 6}};
  const Rule text = Rule::padding(PaddingSide::right, {4, 6}, 6);
  const Rule documents = Rule::same_document(zeros({2, 6}, DType::i32));
  const auto kind_of = [&](const Rule& rule) { return kind(rule.over(square)); };
  EXPECT_EQ(kind_of(Rule()), "none");
  EXPECT_EQ(kind_of(Rule::causal()), "causal");
  EXPECT_EQ(kind_of(Rule::causal() & Rule::window(4) & Rule::window(3)), "causal, window 3");
  EXPECT_EQ(kind_of((Rule::window(3) | Rule::first_keys(2)) & Rule::causal() & text),
            "causal, window 3, sinks 2, padding");
  EXPECT_EQ(kind_of((Rule::causal() | Rule::first_keys(2)) & text & documents & text),
            "causal, prefix 2, padding, documents");
  // Where it does not, the meaning goes into a tensor.
  EXPECT_EQ(kind_of(Rule::first_keys(2)), "keep tensor");
  EXPECT_EQ(kind_of((Rule::causal() | Rule::first_keys(2)) & Rule::window(2)), "keep tensor");
  EXPECT_EQ(kind_of(Rule::causal() | text), "keep tensor");
  EXPECT_EQ(kind_of(Rule::rule([](const MaskPoint&) { return true; })), "keep tensor");
  EXPECT_EQ((Rule::causal() & documents & Rule::same_document(ones({2, 6}, DType::i32)))
                .over(square)
                .keep.shape(),
            (Shape{2, 1, 6, 6}));
}

constexpr int64_t kPositions = 9;

Rule any_leaf(int64_t batch) {
  const auto values = [&](int below) {
    return *rc::gen::container<std::vector<int32_t>>(static_cast<size_t>(batch * kPositions),
                                                     rc::gen::inRange(0, below));
  };
  switch (*rc::gen::inRange(0, 7)) {
    case 0:
      return Rule();
    case 1:
      return Rule::causal();
    case 2:
      return Rule::window(*rc::gen::inRange<int64_t>(1, 6));
    case 3:
      return Rule::first_keys(*rc::gen::inRange<int64_t>(0, 5));
    case 4:
      return Rule::valid(cast(tensor(values(2), {batch, kPositions}), DType::boolean));
    case 5:
      return Rule::same_document(tensor(values(3), {batch, kPositions}));
    default:
      return Rule::rule([](const MaskPoint& at) { return (at.head + at.query + at.key) % 3 != 0; });
  }
}

Rule any_rule(int64_t batch, int depth) {
  if (depth == 0) return any_leaf(batch);
  const Rule left = any_rule(batch, depth - 1);
  const Rule right = any_rule(batch, *rc::gen::inRange(0, depth));
  return *rc::gen::arbitrary<bool>() ? left & right : left | right;
}

TEST(MaskPredicate, AnyCompositionKeepsItsMeaningInEveryForm) {
  int tensors = 0;
  int forms = 0;
  EXPECT_TRUE(rc::check("mask algebra", [&] {
    const int64_t batch = *rc::gen::inRange<int64_t>(1, 3);
    const int64_t key_offset = *rc::gen::inRange<int64_t>(0, 3);
    const int64_t keys = *rc::gen::inRange<int64_t>(1, kPositions - key_offset + 1);
    const int64_t query_offset = *rc::gen::inRange<int64_t>(0, 4);
    const int64_t queries = *rc::gen::inRange<int64_t>(1, kPositions - query_offset + 1);
    const MaskPlacement at{{batch, 2, queries, keys}, query_offset, key_offset};
    const Rule rule = any_rule(batch, *rc::gen::inRange(0, 4));
    const Mask mask = rule.over(at);
    (mask.keep.defined() ? tensors : forms) += 1;
    RC_ASSERT(visibility(mask, at.sizes) == judged(rule, at));
  }));
  EXPECT_GT(forms, 10);  // else the test saw one way only
  EXPECT_GT(tensors, 10);
}

TEST(MaskPredicate, RefusesWhatCannotBePlaced) {
  const auto refusal = [](const Rule& rule, const MaskPlacement& at) {
    return error_of<InvalidArgument>([&] { rule.over(at); });
  };
  const MaskPlacement decode{.sizes = {1, 1, 2, 5}};
  EXPECT_THAT(refusal(Rule::causal(), decode),
              HasSubstr("2 queries and 5 keys need a query_offset: "
                        "0"));
  EXPECT_THAT(refusal(Rule::causal(), decode), HasSubstr("3 if the last stands at the last"));
  const Rule text = Rule::padding(PaddingSide::right, {2, 3}, 4);
  EXPECT_THAT(refusal(text, {.sizes = {2, 1, 5, 5}}), HasSubstr("2 rows and at least 5 positions"));
  EXPECT_THAT(refusal(text, {.sizes = {3, 1, 4, 4}}), HasSubstr("3 rows"));
  EXPECT_THAT(error_of<InvalidArgument>([] { Rule::window(0); }),
              HasSubstr("leave the window out"));
  EXPECT_THAT(error_of<InvalidArgument>([] { Rule::padding(PaddingSide::left, {5}, 4); }),
              HasSubstr("row 0 has a length of 5, but there are 4 positions"));
  EXPECT_THAT(error_of<InvalidArgument>([] { Rule::valid(zeros({2, 4})); }), HasSubstr("bool"));
  EXPECT_THAT(error_of<InvalidArgument>([] { Rule::same_document(zeros({4}, DType::i32)); }),
              HasSubstr("i32 [B, P]"));
}

TEST(CausalMask, HasNoAlignmentWhereThereAreTwo) {
  EXPECT_EQ(causal_mask(4, 4).query_offset, 0);
  EXPECT_EQ(causal_mask(2, 5, CausalAlign::top_left).query_offset, 0);
  EXPECT_EQ(causal_mask(2, 5, CausalAlign::bottom_right).query_offset, 3);
  EXPECT_EQ(causal_mask(5, 2, CausalAlign::bottom_right).query_offset, -3);
  EXPECT_THAT(error_of<InvalidArgument>([] { causal_mask(2, 5); }), HasSubstr("bottom_right"));
}

TEST(RowsWithoutKeys, AreCountedOverBatchHeadsAndQueries) {
  const ScoreSizes sizes{2, 3, 4, 4};
  EXPECT_EQ(rows_without_keys({}, sizes), 0);
  // Left padding of 2: the first two queries see padding only.
  const Rule left = Rule::causal() & Rule::padding(PaddingSide::left, {2, 4}, 4);
  EXPECT_EQ(rows_without_keys(left.over({sizes}), sizes), 2 * 3);
  EXPECT_EQ(rows_without_keys({.key_valid = zeros({2, 4}, DType::boolean)}, sizes), 24);
  // Five queries over two keys, bottom right: three see nothing.
  EXPECT_EQ(rows_without_keys(causal_mask(5, 2, CausalAlign::bottom_right), {1, 1, 5, 2}), 3);
  // By head: only head 1 of row 0 hides query 2.
  const Rule one = Rule::rule(
      [](const MaskPoint& at) { return at.batch != 0 || at.head != 1 || at.query != 2; });
  EXPECT_EQ(rows_without_keys(one.over({sizes}), sizes), 1);
  EXPECT_EQ(rows_without_keys({}, {1, 1, 3, 0}), 3);
}

TEST(Visibility, SpellsOutWindowPrefixSinksAndKeep) {
  const auto row = [](const Mask& mask, int64_t query) {
    const std::vector<uint8_t> seen = visibility(mask, 1, 8, 8);
    std::string text;
    for (int64_t k = 0; k < 8; ++k) text += seen[static_cast<size_t>(query * 8 + k)] ? '1' : '.';
    return text;
  };
  EXPECT_EQ(row({.window = 4}, 7), "....1111");
  EXPECT_EQ(row({.window = 0}, 7), "11111111");  // off, not "see nothing"
  EXPECT_EQ(row({.causal = false, .window = 2}, 4), "...111..");
  EXPECT_EQ(row({.prefix = 3}, 0), "111.....");
  EXPECT_EQ(row({.window = 2, .sinks = 1}, 5), "1...11..");
  EXPECT_EQ(row({.query_offset = -2}, 3), "11......");
  const Mask by_head{.causal = false, .keep = ones({1, 2, 8, 8}, DType::boolean)};
  EXPECT_THROW(visibility(by_head, 1, 8, 8), InvalidArgument);
  EXPECT_EQ(visibility(by_head, {1, 2, 8, 8}).size(), 128U);
}

TEST(Check, NamesThePartThatDoesNotFit) {
  const ScoreSizes sizes{2, 3, 4, 5};
  const auto refusal = [&](const Mask& mask) {
    return error_of<InvalidArgument>([&] { check(mask, sizes); });
  };
  EXPECT_THAT(refusal({.key_valid = ones({5, 2}, DType::boolean)}), HasSubstr("key_valid"));
  EXPECT_THAT(refusal({.key_valid = ones({2, 5})}), HasSubstr("bool[2, 5]"));
  EXPECT_THAT(refusal({.documents = zeros({2, 5})}), HasSubstr("i32[2, 5]"));
  EXPECT_THAT(refusal({.query_offset = 2, .documents = zeros({2, 5}, DType::i32)}),
              HasSubstr("positions 2 to 5"));
  EXPECT_THAT(refusal({.window = -1}), HasSubstr("window"));
  for (const Shape& shape :
       {Shape{4, 5}, Shape{2, 1, 1, 5}, Shape{2, 2, 4, 5}, Shape{2, 5, 4, 5}}) {
    EXPECT_THAT(refusal({.keep = ones(shape, DType::boolean)}), HasSubstr("mask_from_tensor"));
  }
  EXPECT_THAT(refusal({.keep = ones({1, 1, 4, 5})}), HasSubstr("bool"));
  EXPECT_THAT(refusal({.bias = ones({1, 1, 4, 5}, DType::i32)}), HasSubstr("floats"));
}

// ---- masks given as tensors ---------------------------------------------------------------------

TEST(MaskFromTensor, PutsEachNamedAxisWhereItBelongs) {
  const ScoreSizes sizes{2, 2, 2, 2};  // every wrong broadcast would be silent here
  const auto seen = [&](const Tensor& tensor, const std::vector<Axis>& axes) {
    return visibility(mask_from_tensor(tensor, axes, MaskKind::keep, sizes), sizes);
  };
  const Tensor two = bools({1, 0, 0, 1}, {2, 2});
  EXPECT_THAT(seen(two, {Axis::batch, Axis::key}),
              ElementsAre(1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(seen(two, {Axis::head, Axis::key}),
              ElementsAre(1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1));
  EXPECT_THAT(seen(two, {Axis::query, Axis::key}),
              ElementsAre(1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1));
  const Tensor row = bools({1, 0, 1, 0}, {2, 2});
  EXPECT_EQ(seen(row, {Axis::key, Axis::batch}),
            seen(transpose(row, 0, 1), {Axis::batch, Axis::key}));
  EXPECT_THAT(seen(bools({0, 1}, {2}), {Axis::key}),
              ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
}

TEST(MaskFromTensor, RefusesWhatCouldMeanSomethingElse) {
  const ScoreSizes sizes{2, 3, 5, 7};
  const auto refusal = [&](const Tensor& tensor, const std::vector<Axis>& axes, MaskKind kind) {
    return error_of<InvalidArgument>([&] { mask_from_tensor(tensor, axes, kind, sizes); });
  };
  const Tensor keep = ones({2, 7}, DType::boolean);
  EXPECT_THAT(refusal(keep, {Axis::batch, Axis::query, Axis::key}, MaskKind::keep),
              HasSubstr("2 dimensions, but 3 axes are named (batch, query, key)"));
  EXPECT_THAT(refusal(keep, {Axis::key, Axis::key}, MaskKind::keep), HasSubstr("named twice"));
  EXPECT_THAT(refusal(keep, {Axis::query, Axis::key}, MaskKind::keep),
              HasSubstr("the query axis, which has 5, not 2"));
  EXPECT_THAT(refusal(ones({1, 7}, DType::boolean), {Axis::batch, Axis::key}, MaskKind::keep),
              HasSubstr("leave out an axis"));
  EXPECT_THAT(refusal(ones({2, 5}, DType::boolean), {Axis::batch, Axis::query}, MaskKind::keep),
              HasSubstr("no dimension of bool[2, 5] is the key axis"));
  EXPECT_THAT(refusal(ones({2, 7}), {Axis::batch, Axis::key}, MaskKind::keep),
              HasSubstr("a keep mask holds bool"));
  EXPECT_THAT(refusal(ones({2, 7}, DType::i32), {Axis::batch, Axis::key}, MaskKind::keep),
              HasSubstr("a keep mask holds bool"));
  EXPECT_THAT(refusal(keep, {Axis::batch, Axis::key}, MaskKind::additive),
              HasSubstr("an additive mask holds floats"));
  EXPECT_THAT(refusal(ones({2, 7}), {Axis::batch, Axis::key}, MaskKind::additive),
              HasSubstr("only 0 and 1"));
  for (const double bad : {std::nan(""), double{INFINITY}}) {
    EXPECT_THAT(refusal(full({2, 7}, bad), {Axis::batch, Axis::key}, MaskKind::additive),
                HasSubstr("may hold -infinity"));
  }
}

// An additive mask hides by -infinity or by the dtype's lowest number; the rest of it is added.
TEST(MaskFromTensor, AdditiveMasksAreSelectedNotAdded) {
  const ScoreSizes sizes{1, 1, 2, 3};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const double lowest = dtype == DType::f16    ? -65504
                          : dtype == DType::bf16 ? -0x1.fep127
                          : dtype == DType::f32  ? -0x1.fffffep127
                                                 : -0x1.fffffffffffffp1023;
    const Tensor values = cast(tensor<double>({0, -INFINITY, -2.5, lowest, 1, 0}, {2, 3}), dtype);
    const Mask mask = mask_from_tensor(values, {Axis::query, Axis::key}, MaskKind::additive, sizes);
    EXPECT_THAT(visibility(mask, sizes), ElementsAre(1, 0, 1, 0, 1, 1)) << name(dtype);
    EXPECT_THAT(mask.bias.to_vector<double>(), ElementsAre(0, 0, -2.5, 0, 1, 0)) << name(dtype);
  }
  const Mask none = mask_from_tensor(zeros({3}), {Axis::key}, MaskKind::additive, sizes);
  EXPECT_FALSE(none.keep.defined());
}

}  // namespace
}  // namespace faultline::nn
