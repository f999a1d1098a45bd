// Attention by tiles against attention by products, and what both promise of masks.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "nn/mask.h"
#include "tests/support/compare.h"
#include "tests/support/op_samples.h"
#include "tests/support/rounding.h"

namespace faultline::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sizes {
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 65, keys = 65, width = 16;

  Shape q() const { return {batch, heads, queries, width}; }
  Shape k() const { return {batch, key_heads, keys, width}; }
};

// A call of attention but for its tensors.
struct Call {
  std::string what;
  Sizes sizes;
  nn::Mask mask;
  double softcap = 0;
  double p = 0;

  MaskAttributes rule() const {
    return mask.attributes(1 / std::sqrt(static_cast<double>(sizes.width)));
  }
};

Tensor dropout_key() { return tensor({int64_t{77}, int64_t{5}, int64_t{3}}); }

FlashAttentionResult flash(const Call& call, std::span<const Tensor> qkv) {
  return flash_attention(qkv[0], qkv[1], qkv[2], call.mask.key_valid, call.mask.documents,
                         call.p > 0 ? dropout_key() : Tensor(),
                         {call.rule(), call.softcap, {call.p, 9}});
}

// Each key head repeated for the query heads that read it.
Tensor repeated(const Tensor& x_BGKD, int64_t heads) {
  const Shape& s = x_BGKD.shape();
  const Shape one{s[0], s[1], 1, s[2], s[3]};
  const Shape many{s[0], s[1], heads / s[1], s[2], s[3]};
  return reshape(expand(reshape(x_BGKD, one), many), {s[0], heads, s[2], s[3]});
}

Tensor math(const Call& call, std::span<const Tensor> qkv) {
  MaskAttributes rule = call.rule();
  Tensor scores =
      matmul(qkv[0], transpose(repeated(qkv[1], call.sizes.heads), -2, -1)) * rule.scale;
  if (call.softcap > 0) scores = tanh(scores * (1 / call.softcap)) * call.softcap;
  rule.scale = 1;
  Tensor weights = masked_softmax(scores, call.mask.key_valid, call.mask.documents, rule);
  weights = dropout(weights, dropout_key(), call.p, 9);
  return matmul(weights, repeated(qkv[2], call.sizes.heads));
}

Tensors inputs_of(const Sizes& sizes) {
  return {normal(sizes.q(), 0, 1, 5, 1), normal(sizes.k(), 0, 1, 5, 2),
          normal(sizes.k(), 0, 1, 5, 3)};
}

Run run_of(const Call& call, const std::function<Tensor(const Call&, std::span<const Tensor>)>& f) {
  return [call, f](std::span<const Tensor> qkv) -> Tensors { return {f(call, qkv)}; };
}
Tensor flash_y(const Call& call, std::span<const Tensor> qkv) { return flash(call, qkv).y_BHQD; }

double largest(const Tensor& x) {
  double result = 0;
  for (const double value : x.to_vector<double>()) result = std::max(result, std::abs(value));
  return result;
}

// y and the gradients of q, k, v in f32 against the products in f64, within what rounding in f32
// explains at these inputs (see rounding_bound). A gradient of the scores is a difference of
// numbers that may be larger than it is: up to the sum of |v| of a key, since |dy| <= 1. That many
// eps, a few times, reach the gradients of q and k through the scale and k or q.
void expect_agreement(const Call& call) {
  SCOPED_TRACE(fmt::format("{}: {} against {}", call.what, to_string(call.sizes.q()),
                           to_string(call.sizes.k())));
  const Scoped<int> one(Context::current().threads, 1);  // many small launches
  const Tensors inputs = inputs_of(call.sizes);
  const Tensors wide = widened(inputs);
  const Run by_tiles = run_of(call, flash_y);
  const Run by_products = run_of(call, math);
  EXPECT_TRUE(within(flattened(by_tiles(inputs)), flattened(by_products(wide)),
                     rounding_bound(by_products, wide, DType::f32)));
  const Run gradient = gradient_of(by_products);
  std::vector<double> bound = rounding_bound(gradient, wide, DType::f32);
  const double difference = largest(sum(abs(wide[2]), {3})) * call.rule().scale;
  for (double& allowed : bound) {
    allowed += 4 * 0x1p-24 * difference * std::max(largest(wide[0]), largest(wide[1]));
  }
  EXPECT_TRUE(within(flattened(gradient_of(by_tiles)(inputs)), flattened(gradient(wide)), bound));
}

Tensor some_valid(int64_t batch, int64_t keys) {
  Tensor valid = empty({batch, keys}, DType::boolean);
  for (int64_t i = 0; i < batch * keys; ++i) {
    valid.mutable_data<bool>()[i] = i % keys >= 5 && i % 7 != 0 && i / keys != 1;
  }
  return valid;
}

Tensor some_documents(int64_t batch, int64_t keys) {
  Tensor documents = empty({batch, keys}, DType::i32);
  for (int64_t i = 0; i < batch * keys; ++i) {
    documents.mutable_data<int32_t>()[i] = static_cast<int32_t>((i % keys + i / keys) / 23);
  }
  return documents;
}

// Every kind of mask over two sequences (the second has no valid key where key_valid is given).
std::vector<Call> calls() {
  const Sizes sizes{.batch = 2, .queries = 70, .keys = 131};
  const Tensor valid = some_valid(2, 131);
  const Tensor documents = some_documents(2, 131);
  std::vector<Call> all;
  const auto add = [&](std::string what, nn::Mask mask, double softcap = 0, double p = 0) {
    all.push_back({std::move(what), sizes, std::move(mask), softcap, p});
  };
  add("causal, later queries", {.query_offset = 61});
  add("causal, equal starts", {});
  add("causal, queries before the keys", {.query_offset = -66});
  add("not causal", {.causal = false});
  add("padding", {.query_offset = 61, .key_valid = valid});
  add("documents", {.query_offset = 61, .documents = documents});
  add("both, not causal",
      {.causal = false, .query_offset = 7, .key_valid = valid, .documents = documents});
  add("window", {.query_offset = 61, .window = 17});
  add("window both ways", {.causal = false, .query_offset = 30, .window = 40});
  add("window of one", {.query_offset = 61, .window = 1});
  add("prefix", {.query_offset = 5, .prefix = 67});
  add("window and sinks", {.query_offset = 61, .window = 20, .sinks = 4});
  add("all of it", {.query_offset = 61,
                    .key_valid = valid,
                    .documents = documents,
                    .window = 20,
                    .prefix = 9,
                    .sinks = 12});
  add("soft-cap", {.query_offset = 61}, 0.8);
  add("dropout", {.query_offset = 61}, 0, 0.3);
  add("dropout, soft-cap, padding", {.causal = false, .key_valid = valid}, 2, 0.5);
  const size_t first = all.size();
  add("few queries", {.query_offset = 128});
  add("few queries, all of it", {.query_offset = 128,
                                 .key_valid = valid,
                                 .documents = documents,
                                 .window = 20,
                                 .prefix = 9,
                                 .sinks = 12});
  add("few queries, window, soft-cap, dropout", {.query_offset = 100, .window = 70}, 0.8, 0.3);
  for (size_t i = first; i < all.size(); ++i) all[i].sizes.queries = 3;
  return all;
}

TEST(FlashAttention, AgreesWithProductsAtTheBordersOfTiles) {
  for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    expect_agreement({"square", {.queries = length, .keys = length}, {}});
  }
  for (const int64_t length : {63, 64, 65, 129}) {
    expect_agreement({"few queries", {.queries = 3, .keys = length}, {.query_offset = length - 3}});
  }
}

TEST(FlashAttention, AgreesWithProductsForEveryHeadSize) {
  for (const int64_t width : {1, 3, 17, 48, 80, 130}) {
    expect_agreement({"head size", {.width = width}, {}});
  }
}

TEST(FlashAttention, AgreesWithProductsForEveryGrouping) {
  for (const auto& [batch, heads, key_heads] : {std::array{1, 6, 2}, {1, 3, 1}, {2, 4, 2}}) {
    expect_agreement({"grouped",
                      {.batch = batch, .heads = heads, .key_heads = key_heads, .queries = 33},
                      {.query_offset = 32}});
  }
}

TEST(FlashAttention, AgreesWithProductsUnderEveryMask) {
  for (const Call& call : calls()) expect_agreement(call);
}

// Scores beyond 600: without the maximum of each row, exp would overflow.
TEST(FlashAttention, DoesNotOverflow) {
  const Call call{"large scores", {.queries = 130, .keys = 130, .width = 64}, {}};
  const Tensors inputs{normal(call.sizes.q(), 0, 30, 5, 1), normal(call.sizes.k(), 0, 10, 5, 2),
                       normal(call.sizes.k(), 0, 1, 5, 3)};
  const Tensors wide = widened(inputs);
  const auto by_products = run_of(call, math);
  EXPECT_TRUE(within(flash_y(call, inputs).to_vector<double>(), flattened(by_products(wide)),
                     rounding_bound(by_products, wide, DType::f32)));
}

// With all scores 0, y is the mean of the visible rows of v; with an identity for v, every key
// shows whether it is one of them.
TEST(FlashAttention, LooksExactlyWhereThePredicateSays) {
  for (Call call : calls()) {
    if (call.p > 0) continue;
    SCOPED_TRACE(call.what);
    call.sizes.width = call.sizes.keys;
    const auto& [B, H, G, Q, K, D] = call.sizes;
    Tensor identity = zeros(call.sizes.k());
    for (int64_t row = 0; row < B * G * K; ++row) {
      identity.mutable_data<float>()[row * K + row % K] = 1;
    }
    const Tensors inputs{zeros(call.sizes.q()), zeros(call.sizes.k()), identity};
    const auto y = flash_y(call, inputs).to_vector<float>();
    const auto seen = nn::visibility(call.mask, B, Q, K);
    for (int64_t row = 0; row < B * H * Q; ++row) {
      const int64_t b = row / (H * Q);
      const uint8_t* sees = &seen[static_cast<size_t>((b * Q + row % Q) * K)];
      const auto count = static_cast<float>(std::count(sees, sees + K, 1));
      for (int64_t k = 0; k < K; ++k) {
        const float expected = sees[k] != 0 ? 1 / count : 0;
        ASSERT_EQ(y[static_cast<size_t>(row * K + k)], expected) << "row " << row << ", key " << k;
      }
    }
  }
}

// 1, 1.5, 7/3, 15/4, 31/5, 63/6, 127/7, 255/8: each of them names its visible keys.
TEST(FlashAttention, GivesTheExactRationalsOfTheVisibilityProbe) {
  std::vector<float> powers;
  for (int j = 0; j < 8; ++j) powers.push_back(std::ldexp(1.0F, j));
  const Tensors inputs{zeros({1, 1, 8, 1}), zeros({1, 1, 8, 1}), tensor(powers, {1, 1, 8, 1})};
  const auto y = flash_y({"probe", {.heads = 1, .width = 1}, {}}, inputs).to_vector<float>();
  for (int n = 1; n <= 8; ++n) {
    // The reciprocal of n, and the product with it, are rounded.
    const double exact = (std::ldexp(1.0, n) - 1) / n;
    EXPECT_NEAR(y[static_cast<size_t>(n - 1)], exact, exact * 0x1p-23) << n;
  }
}

TEST(FlashAttention, OfNothingVisibleIsZeroWithZeroGradients) {
  const Call call{"queries before the keys", {.queries = 66, .keys = 66}, {.query_offset = -66}};
  const Tensors inputs = inputs_of(call.sizes);
  for (const Tensor& input : inputs) set_requires_grad(input);
  const FlashAttentionResult result = flash(call, inputs);
  for (const float y : result.y_BHQD.to_vector<float>()) EXPECT_EQ(y, 0.0F);
  for (const float sum : result.log_sum_exp_BHQ.to_vector<float>()) EXPECT_EQ(sum, -kInf);
  backward(result.y_BHQD, ones(call.sizes.q()));
  for (const Tensor& input : inputs) {
    for (const float g : gradient(input).to_vector<float>()) EXPECT_EQ(g, 0.0F);
  }
}

TEST(FlashAttention, LogSumExpIsThatOfTheVisibleScores) {
  const Call call{"window", {.queries = 130, .keys = 130}, {.window = 70}};
  const Tensors inputs = inputs_of(call.sizes);
  const auto found = flash(call, inputs).log_sum_exp_BHQ.to_vector<double>();
  const Tensors wide = widened(inputs);
  const auto expected = flash(call, wide).log_sum_exp_BHQ.to_vector<double>();
  // A score of size s is rounded by (D + 2) eps s, the sum of up to 128 terms by 130 eps.
  EXPECT_TRUE(close(found, expected, {.absolute = 130 * 0x1p-24 + 18 * 0x1p-24 * 16}));
}

// ---- what must not reach what -------------------------------------------------------------------

struct Backward {
  Tensor y;
  Tensors gradients;  // of q, k, v
};
Backward both_ways(const Call& call, const Tensors& inputs, const Tensor& dy) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.detach());
    set_requires_grad(leaves.back());
  }
  const Tensor y = flash_y(call, leaves);
  return {y, gradients(y, leaves, dy)};
}

Tensor with_row(const Tensor& x_BHTD, int64_t b, int64_t t, float value) {
  auto values = x_BHTD.to_vector<float>();
  const Shape& s = x_BHTD.shape();
  for (int64_t h = 0; h < s[1]; ++h) {
    std::fill_n(values.begin() + ((b * s[1] + h) * s[2] + t) * s[3], s[3], value);
  }
  return tensor(values, s);
}

// Every bit of the rows `t` of sequence `b` with keeps(t) != 0.
void expect_same_rows(const Tensor& actual, const Tensor& expected, int64_t b,
                      const std::function<bool(int64_t)>& keeps) {
  const Shape& s = actual.shape();
  const auto found = actual.to_vector<float>();
  const auto wanted = expected.to_vector<float>();
  for (size_t i = 0; i < found.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / s[3];
    if (row / (s[1] * s[2]) == b && !keeps(row % s[2])) continue;
    ASSERT_EQ(found[i], wanted[i]) << "element " << i;
  }
}

TEST(FlashAttention, AKeyReachesOnlyTheQueriesThatSeeIt) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.what);
    const auto& [B, H, G, Q, K, D] = call.sizes;
    const auto seen = nn::visibility(call.mask, B, Q, K);
    const Tensors inputs = inputs_of(call.sizes);
    const Tensor dy = normal(call.sizes.q(), 0, 1, 5, 4);
    const Backward expected = both_ways(call, inputs, dy);
    for (const int64_t key : {0, 3, 63, 64, 77, 129}) {
      const auto is_unseen = [&, &Q = Q, &K = K](int64_t q) {
        return seen[static_cast<size_t>((0 * Q + q) * K + key)] == 0;
      };
      for (const float poison : {kNan, kInf}) {
        const Tensors spoilt{inputs[0], with_row(inputs[1], 0, key, poison),
                             with_row(inputs[2], 0, key, poison)};
        const Backward found = both_ways(call, spoilt, dy);
        expect_same_rows(found.y, expected.y, 0, is_unseen);
        expect_same_rows(found.gradients[0], expected.gradients[0], 0, is_unseen);
      }
    }
  }
}

TEST(FlashAttention, AQueryReachesOnlyTheKeysThatItSees) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.what);
    const auto& [B, H, G, Q, K, D] = call.sizes;
    const auto seen = nn::visibility(call.mask, B, Q, K);
    const Tensors inputs = inputs_of(call.sizes);
    const Tensor dy = normal(call.sizes.q(), 0, 1, 5, 4);
    const Backward expected = both_ways(call, inputs, dy);
    for (const int64_t query : {0, 2, 63, 64, 69}) {
      if (query >= Q) continue;
      const auto is_unseen = [&, &Q = Q, &K = K](int64_t k) {
        return seen[static_cast<size_t>((0 * Q + query) * K + k)] == 0;
      };
      const Tensors spoilt{with_row(inputs[0], 0, query, kNan), inputs[1], inputs[2]};
      const Backward found = both_ways(call, spoilt, with_row(dy, 0, query, kNan));
      expect_same_rows(found.gradients[1], expected.gradients[1], 0, is_unseen);
      expect_same_rows(found.gradients[2], expected.gradients[2], 0, is_unseen);
    }
  }
}

TEST(FlashAttention, AVisibleNanIsNotHidden) {
  const Call call{"causal", {.queries = 70, .keys = 70}, {}};
  const Tensors inputs = inputs_of(call.sizes);
  const Tensors spoilt{inputs[0], inputs[1], with_row(inputs[2], 0, 66, kNan)};
  const auto y = flash_y(call, spoilt).to_vector<float>();
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(std::isnan(y[i]), i / 16 % 70 >= 66) << "element " << i;
  }
}

// ---- bits ---------------------------------------------------------------------------------------

TEST(FlashAttention, ThreadsDoNotChangeABit) {
  for (const int64_t batch : {1, 2}) {  // few key heads, and enough of them to be a task each
    Call call{"threads", {batch, 4, 2, 150, 150, 32}, {.window = 100}, 0, 0.1};
    const Tensors inputs = inputs_of(call.sizes);
    const Tensor dy = normal(call.sizes.q(), 0, 1, 5, 4);
    const Scoped<int> one(Context::current().threads, 1);
    const Backward expected = both_ways(call, inputs, dy);
    for (const int threads : {2, 3, 4}) {
      const Scoped<int> more(Context::current().threads, threads);
      const Backward found = both_ways(call, inputs, dy);
      EXPECT_TRUE(same_bits(found.y, expected.y));
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(found.gradients[i], expected.gradients[i])) << i;
      }
    }
  }
}

// Heads as a model cuts them out of one product: far apart in memory.
TEST(FlashAttention, LayoutsDoNotChangeABit) {
  for (const int64_t width : {16, 20}) {
    const Call call{"layout", {2, 3, 3, 70, 70, width}, {}};
    const Tensors inputs = inputs_of(call.sizes);
    const Tensor dy = normal(call.sizes.q(), 0, 1, 5, 4);
    const Backward expected = both_ways(call, inputs, dy);
    Tensors views;
    for (const Tensor& input : inputs) {
      views.push_back(permute(contiguous(permute(input, {0, 2, 1, 3})), {0, 2, 1, 3}));
    }
    const Backward found = both_ways(call, views, transpose(contiguous(transpose(dy, 2, 3)), 2, 3));
    EXPECT_TRUE(same_bits(found.y, expected.y));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(found.gradients[i], expected.gradients[i])) << i;
    }
  }
}

// Products, softmax and sums are in f32 whatever the inputs are; each result is rounded once.
TEST(FlashAttention, SixteenBitTypesAreComputedInF32) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t key_heads : {1, 4}) {
      const Call call{"16 bit", {1, 4, key_heads, 130, 130, 32}, {}};
      const NoGrad off;
      Tensors narrow;
      Tensors wide;
      for (const Tensor& input : inputs_of(call.sizes)) {
        narrow.push_back(cast(input, dtype));
        wide.push_back(cast(narrow.back(), DType::f32));
      }
      const FlashAttentionResult found = flash(call, narrow);
      const FlashAttentionResult expected = flash(call, wide);
      EXPECT_TRUE(same_bits(found.y_BHQD, cast(expected.y_BHQD, dtype)));
      EXPECT_TRUE(same_bits(found.log_sum_exp_BHQ, expected.log_sum_exp_BHQ));
      const auto gradients_of = [&](const Tensors& qkv, const Tensor& y) {
        const Tensor dy = cast(cast(normal(call.sizes.q(), 0, 1, 5, 4), dtype), y.dtype());
        const Tensor in[] = {qkv[0], qkv[1], qkv[2], {}, {}, {}, dy, y, found.log_sum_exp_BHQ};
        return apply(definition(Op::flash_attention_backward), in,
                     FlashAttentionAttributes{call.rule(), 0, {}});
      };
      const Outputs small = gradients_of(narrow, found.y_BHQD);
      const Outputs large = gradients_of(wide, cast(found.y_BHQD, DType::f32));
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(small[i], cast(large[i], dtype))) << i;
    }
  }
}

TEST(FlashAttention, WithAllDroppedIsZero) {
  const Call call{"all dropped", {}, {}, 0, std::nextafter(1.0, 0.0)};
  const Tensors inputs = inputs_of(call.sizes);
  const Backward found = both_ways(call, inputs, ones(call.sizes.q()));
  for (const float y : found.y.to_vector<float>()) EXPECT_EQ(y, 0.0F);
  for (const Tensor& gradient : found.gradients) {
    for (const float g : gradient.to_vector<float>()) EXPECT_EQ(g, 0.0F);
  }
}

TEST(FlashAttention, CountsTheVisibleWork) {
  double forward = 0;
  double back = 0;
  const auto watch = Context::current().events.subscribe<LaunchEvent>([&](const LaunchEvent& e) {
    if (std::string_view(e.launch.label.op) == "flash_attention") forward = e.launch.flops;
    if (std::string_view(e.launch.label.op) == "flash_attention_backward") back = e.launch.flops;
  });
  const Call call{"causal", {2, 4, 2, 10, 10, 16}, {}};
  both_ways(call, inputs_of(call.sizes), ones(call.sizes.q()));
  const double visible = 2 * 4 * 55;  // 1 + 2 + ... + 10 for each head
  EXPECT_EQ(forward, 2 * 2 * 16 * visible);
  EXPECT_EQ(back, 5 * 2 * 16 * visible);
}

}  // namespace
}  // namespace faultline::test
