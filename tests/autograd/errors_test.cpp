// Wrong calls: every op at least one, each an InvalidArgument that names the op and what it got.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/attributes.h"

namespace faultline {
namespace {

struct WrongCall {
  std::function<void()> call;
  std::vector<std::string> names;  // beside the op's own
};

using WrongCalls = std::multimap<std::string, WrongCall>;

// 16 elementwise ops take any dtype and shape, so what is wrong is their backward op, and a call
// with more tensors than they have inputs.
void add_unary(WrongCalls& calls) {
  for (const OpDefinition& op : all_ops()) {
    const std::string name = op.name;
    const std::string suffix = "_backward";
    const bool is_unary =
        op.inputs == 1 && op.saved_inputs == 1 && op.saved_outputs == 1 && name != "amax";
    const auto too_many = [&op] {
      const std::vector<Tensor> many(static_cast<size_t>(op.inputs) + 1, zeros({2}));
      faultline::apply(op, many);  // std::apply would be found too
    };
    if (is_unary) {
      calls.insert({name, {too_many, {"takes 1 to 1 tensors, got 2"}}});
      calls.insert(
          {name, {[&op] { faultline::apply(op, std::vector<Tensor>(1)); }, {"undefined"}}});
    }
    if (op.inputs == 3 && op.differentiable == 0 && name.ends_with(suffix)) {
      const auto mixed = [&op](const Tensor& other) {
        faultline::apply(op, std::vector<Tensor>{zeros({2, 3}), other, zeros({2, 3})});
      };
      calls.insert({name, {[mixed] { mixed(zeros({3, 2})); }, {"f32[2, 3]", "f32[3, 2]"}}});
      calls.insert({name,
                    {[mixed] {
                       mixed(zeros({2, 3}, DType::f64));
                     },
                     {"f32[2, 3]", "f64[2, 3]"}}});
    }
  }
}

void add_binary(WrongCalls& calls) {
  for (const Op op : {Op::add, Op::sub, Op::mul, Op::div, Op::maximum, Op::minimum, Op::equal,
                      Op::less, Op::less_equal, Op::logical_and}) {
    const std::string name = definition(op).name;
    calls.insert({name,
                  {[op] {
                     apply(op, {zeros({2, 3}), zeros({2, 4})});
                   },
                   {"[2, 3]", "[2, 4]"}}});
    calls.insert({name,
                  {[op] {
                     apply(op, {zeros({2}), zeros({2}, DType::f64)});
                   },
                   {"f32[2]", "f64[2]"}}});
    calls.insert({name, {[op] { apply(op, {zeros({2}), Tensor()}); }, {"f32[2]", "undefined"}}});
    calls.insert({name, {[op] { apply(op, {zeros({2})}); }, {"2 tensors"}}});
  }
  calls.insert({"affine", {[] { affine(Tensor(), 1, 2); }, {"undefined"}}});
  calls.insert({"logical_not", {[] { logical_not(Tensor()); }, {"undefined"}}});
  calls.insert({"isfinite", {[] { isfinite(Tensor()); }, {"undefined"}}});
  calls.insert({"where", {[] { where(zeros({2}), zeros({2}), zeros({2})); }, {"bool", "f32[2]"}}});
  calls.insert(
      {"where",
       {[] { where(zeros({2}, DType::boolean), zeros({3}), zeros({3})); }, {"[2]", "[3]"}}});
  calls.insert({"where",
                {[] { where(zeros({2}, DType::boolean), zeros({2}), zeros({2}, DType::i32)); },
                 {"f32[2]", "i32[2]"}}});
}

void add_layout(WrongCalls& calls) {
  const auto x = [] { return zeros({2, 3}); };
  calls.insert({"view", {[=] { view(x(), {4, 2}); }, {"f32[2, 3]", "[4, 2]"}}});
  calls.insert({"view", {[=] { view(transpose(x(), 0, 1), {6}); }, {"[3, 2]", "[6]", "reshape"}}});
  calls.insert({"view", {[=] { view(x(), {-1, -1}); }, {"-1"}}});
  calls.insert({"view", {[=] { view(zeros({0, 3}), {0, -1}); }, {"f32[0, 3]", "-1"}}});
  calls.insert({"permute", {[=] { permute(x(), {0}); }, {"f32[2, 3]", "[0]"}}});
  calls.insert({"permute", {[=] { permute(x(), {1, 1}); }, {"[1, 1]"}}});
  calls.insert({"permute", {[=] { permute(x(), {0, 2}); }, {"[0, 2]"}}});
  calls.insert({"permute", {[=] { permute(x(), {-1, 0}); }, {"[-1, 0]"}}});
  calls.insert({"slice", {[=] { slice(x(), 1, 1, 4); }, {"f32[2, 3]", "[1, 4)"}}});
  calls.insert({"slice", {[=] { slice(x(), 1, 2, 1); }, {"[2, 1)"}}});
  calls.insert({"slice", {[=] { slice(x(), 2, 0, 1); }, {"dimension 2"}}});
  calls.insert({"expand", {[=] { expand(x(), {3, 3}); }, {"[2, 3]", "[3, 3]"}}});
  calls.insert({"expand", {[=] { expand(x(), {3}); }, {"f32[2, 3]", "[3]"}}});
  calls.insert({"split3", {[=] { split3(zeros({3, 4})); }, {"f32[3, 4]", "3"}}});
  calls.insert({"slice_backward",
                {[=] {
                   apply(Op::slice_backward, {x()}, SliceAttributes{1, 2, 3, 4});
                 },
                 {"f32[2, 3]", "[2, 5)"}}});
  calls.insert({"contiguous", {[] { apply(Op::contiguous, {Tensor()}); }, {"undefined"}}});
  calls.insert({"cast", {[] { apply(Op::cast, {Tensor()}); }, {"undefined"}}});
  calls.insert({"cat",
                {[=] {
                   cat(std::vector<Tensor>{x(), zeros({2, 3, 1})}, 0);
                 },
                 {"f32[2, 3]", "f32[2, 3, 1]"}}});
  calls.insert({"cat",
                {[=] {
                   cat(std::vector<Tensor>{x(), zeros({3, 2})}, 0);
                 },
                 {"f32[2, 3]", "f32[3, 2]"}}});
  calls.insert({"cat",
                {[=] {
                   cat(std::vector<Tensor>{x(), zeros({2, 3}, DType::f16)}, 0);
                 },
                 {"f32[2, 3]", "f16[2, 3]"}}});
  calls.insert({"cat", {[] { cat({}, 0); }, {"at least one"}}});
  calls.insert({"cat", {[=] { cat(std::vector<Tensor>{x()}, 2); }, {"dimension 2"}}});
  calls.insert({"index_select", {[=] { index_select(x(), 0, zeros({2})); }, {"f32[2]"}}});
  calls.insert({"index_select",
                {[=] {
                   index_select(x(), 0, zeros({1, 1}, DType::i64));
                 },
                 {"i64[1, 1]"}}});
  calls.insert({"index_select", {[=] { index_select(x(), 1, tensor({int64_t{3}})); }, {"3"}}});
  calls.insert({"index_select", {[=] { index_select(x(), 1, tensor({int64_t{-1}})); }, {"-1"}}});
  calls.insert(
      {"index_select_backward",
       {[=] {
          apply(Op::index_select_backward, {x(), zeros({4}, DType::i64)}, DimAttributes{1, 9});
        },
        {"f32[2, 3]", "i64[4]"}}});
}

void add_reductions(WrongCalls& calls) {
  const auto x = [] { return zeros({2, 3}); };
  calls.insert({"sum", {[=] { sum(x(), {2}); }, {"dimension 2"}}});
  calls.insert({"sum", {[=] { sum(x(), {1, -1}); }, {"twice"}}});
  calls.insert({"mean", {[=] { mean(x(), {-3}); }, {"-3"}}});
  calls.insert({"mean", {[] { mean(zeros({2}, DType::i64)); }, {"i64[2]"}}});
  calls.insert({"amax", {[] { amax(zeros({2, 0}), {1}); }, {"f32[2, 0]"}}});
  calls.insert({"argmax", {[] { argmax(zeros({2, 0}), 1); }, {"f32[2, 0]"}}});
  calls.insert({"argmax", {[=] { argmax(x(), 2); }, {"dimension 2"}}});
  calls.insert({"matmul", {[=] { matmul(x(), x()); }, {"f32[2, 3]", "3 and 2"}}});
  calls.insert({"matmul", {[=] { matmul(x(), zeros({3})); }, {"f32[2, 3]", "f32[3]"}}});
  calls.insert({"matmul", {[] { matmul(zeros({2, 3, 4}), zeros({3, 4, 5})); }, {"[2]", "[3]"}}});
  calls.insert({"matmul",
                {[=] {
                   matmul(x(), zeros({3, 2}, DType::bf16));
                 },
                 {"f32[2, 3]", "bf16[3, 2]"}}});
  calls.insert({"matmul",
                {[] {
                   matmul(zeros({2, 2}, DType::i32), zeros({2, 2}, DType::i32));
                 },
                 {"i32[2, 2]"}}});
  calls.insert({"linear", {[=] { linear(x(), zeros({4, 2})); }, {"f32[2, 3]", "f32[4, 2]"}}});
  calls.insert({"linear", {[=] { linear(x(), zeros({3})); }, {"[out, in]"}}});
  calls.insert({"linear", {[=] { linear(x(), zeros({4, 3}), zeros({3})); }, {"f32[3]", "[4]"}}});
}

void add_network(WrongCalls& calls) {
  const auto x = [] { return zeros({2, 3}); };
  const auto whole = [](const Shape& shape) { return zeros(shape, DType::i64); };
  for (const Op op : {Op::softmax, Op::log_softmax}) {
    calls.insert({definition(op).name, {[=] { apply(op, {whole({2})}); }, {"i64[2]"}}});
    calls.insert({definition(op).name, {[=] { apply(op, {zeros({})}); }, {"f32[]"}}});
  }
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
    calls.insert({definition(op).name,
                  {[=] {
                     apply(op, {x(), zeros({3, 2})});
                   },
                   {"f32[2, 3]", "f32[3, 2]"}}});
  }
  calls.insert({"masked_softmax", {[=] { masked_softmax(x(), {}, {}, {}); }, {"f32[2, 3]"}}});
  calls.insert({"masked_softmax",
                {[] {
                   masked_softmax(zeros({2, 1, 3, 3}), zeros({3, 3}, DType::boolean), {}, {});
                 },
                 {"[2, 3]", "bool[3, 3]"}}});
  calls.insert({"masked_softmax",
                {[] {
                   masked_softmax(zeros({2, 1, 3, 3}), {}, zeros({2, 3}), {});
                 },
                 {"[2, 3]", "f32[2, 3]"}}});
  calls.insert(
      {"masked_softmax",
       {[] {
          masked_softmax(zeros({2, 1, 3, 3}), {}, zeros({2, 3}, DType::i32), {.query_offset = 1});
        },
        {"1..4 of 3"}}});
  calls.insert({"masked_softmax",
                {[] {
                   masked_softmax(zeros({2, 1, 3, 3}), {}, {}, {.sinks = -3});
                 },
                 {"sinks", "-3"}}});
  calls.insert({"cross_entropy", {[=] { cross_entropy_rows(x(), whole({3})); }, {"i64[3]"}}});
  calls.insert({"cross_entropy", {[=] { cross_entropy_rows(x(), zeros({2})); }, {"f32[2]"}}});
  calls.insert({"cross_entropy",
                {[=] {
                   cross_entropy_rows(x(), tensor({int64_t{0}, int64_t{3}}));
                 },
                 {"3"}}});
  calls.insert({"cross_entropy",
                {[=] {
                   cross_entropy_rows(x(), tensor({int64_t{-2}, int64_t{1}}));
                 },
                 {"-2"}}});
  calls.insert({"cross_entropy",
                {[=] {
                   cross_entropy_rows(zeros({2, 0}), whole({2}));
                 },
                 {"[2, 0]"}}});
  calls.insert({"cross_entropy_backward",
                {[=] {
                   apply(Op::cross_entropy_backward, {x(), whole({3}), zeros({3}), zeros({3})},
                         CrossEntropyAttributes{});
                 },
                 {"f32[2, 3]", "i64[3]"}}});
  calls.insert({"layer_norm", {[=] { layer_norm(x(), zeros({2}), {}); }, {"[3]", "f32[2]"}}});
  calls.insert({"layer_norm", {[=] { layer_norm(x(), {}, zeros({3}, DType::f64)); }, {"f64[3]"}}});
  calls.insert({"layer_norm", {[=] { layer_norm(whole({2, 3}), {}, {}); }, {"i64[2, 3]"}}});
  calls.insert({"layer_norm_backward",
                {[=] {
                   const Tensor in[] = {x(), x(), zeros({2}), zeros({2}), zeros({2})};
                   apply(definition(Op::layer_norm_backward), in, LayerNormAttributes{});
                 },
                 {"f32[2, 3]", "f32[2]"}}});
  calls.insert({"embedding", {[=] { embedding(zeros({3}), whole({2})); }, {"f32[3]"}}});
  calls.insert({"embedding", {[=] { embedding(x(), zeros({2})); }, {"f32[2]"}}});
  calls.insert({"embedding", {[=] { embedding(x(), tensor({int64_t{2}})); }, {"2"}}});
  calls.insert({"embedding", {[=] { embedding(x(), Tensor()); }, {"undefined"}}});
  calls.insert({"embedding_backward",
                {[=] {
                   apply(Op::embedding_backward, {x(), whole({3})}, DimAttributes{0, 5});
                 },
                 {"f32[2, 3]", "i64[3]"}}});
  calls.insert({"dropout", {[=] { dropout(x(), whole({2}), 0.5, 0); }, {"i64[2]"}}});
  calls.insert({"dropout", {[=] { dropout(x(), whole({3}), 1.0, 0); }, {"[0, 1)"}}});
  calls.insert({"dropout", {[=] { dropout(whole({3}), whole({3}), 0.5, 0); }, {"i64[3]"}}});
}

void add_attention(WrongCalls& calls) {
  const auto attend = [&calls](std::function<void()> call, std::vector<std::string> names) {
    calls.insert({"flash_attention", {std::move(call), std::move(names)}});
  };
  const auto x = [](const Shape& shape, DType dtype = DType::f32) { return zeros(shape, dtype); };
  const auto with = [x](const FlashAttentionAttributes& attributes, const Tensor& valid = {},
                        const Tensor& documents = {}, const Tensor& key = {}) {
    flash_attention(x({2, 4, 3, 8}), x({2, 2, 5, 8}), x({2, 2, 5, 8}), valid, documents, key,
                    attributes);
  };
  const auto of = [](const Tensor& q, const Tensor& k, const Tensor& v) {
    flash_attention(q, k, v, {}, {}, {}, {});
  };
  const Tensor q = x({2, 4, 3, 8});
  attend([=] { of(x({4, 3, 8}), q, q); }, {"f32[4, 3, 8]"});
  attend([=] { of(q, {}, q); }, {"undefined"});
  attend([=] { of(q, q, {}); }, {"undefined"});
  attend([=] { of(q, x({2, 4, 3, 8}, DType::f16), q); }, {"f32[2, 4, 3, 8]", "f16[2, 4, 3, 8]"});
  attend([=] { of(x(q.shape(), DType::i64), q, q); }, {"i64[2, 4, 3, 8]"});
  attend([=] { of(q, x({2, 4, 5, 8}), q); }, {"[2, 4, 5, 8]", "[2, 4, 3, 8]"});
  attend([=] { of(q, x({1, 4, 3, 8}), x({1, 4, 3, 8})); }, {"batch size", "[1, 4, 3, 8]"});
  attend([=] { of(q, x({2, 4, 3, 7}), x({2, 4, 3, 7})); }, {"head size", "[2, 4, 3, 7]"});
  attend([=] { of(q, x({2, 3, 3, 8}), x({2, 3, 3, 8})); }, {"4 query heads", "3 key heads"});
  attend([=] { of(q, x({2, 0, 3, 8}), x({2, 0, 3, 8})); }, {"4 query heads", "0 key heads"});
  attend([=] { with({{.window = -1}, 0, {}}); }, {"window", "-1"});
  attend([=] { with({{}, -2, {}}); }, {"softcap", "-2"});
  attend([=] { with({{}, 0, {1, 0}}); }, {"[0, 1)", "1"});
  attend([=] { with({{}, 0, {0.5, 0}}); }, {"i64[3]", "undefined"});
  attend([=] { with({}, x({2, 3}, DType::boolean)); }, {"bool[2, 5]", "bool[2, 3]"});
  attend([=] { with({}, {}, x({2, 5})); }, {"i32[2, 5]", "f32[2, 5]"});
  attend([=] { with({{.query_offset = 3}, 0, {}}, {}, x({2, 5}, DType::i32)); }, {"3..6 of 5"});
  const auto backward_of = [=](const Tensor& dy, const Tensor& lse) {
    const Tensor in[] = {q, q, q, {}, {}, {}, dy, q, lse};
    apply(definition(Op::flash_attention_backward), in, FlashAttentionAttributes{});
  };
  calls.insert({"flash_attention_backward",
                {[=] {
                   backward_of(x({2, 4, 3, 7}), x({2, 4, 3}));
                 },
                 {"[2, 4, 3, 7]"}}});
  calls.insert({"flash_attention_backward",
                {[=] {
                   backward_of(q, x({2, 4, 5}));
                 },
                 {"f32[2, 4, 3]", "f32[2, 4, 5]"}}});
}

// rms_norm, rope, swiglu.
void add_llama(WrongCalls& calls) {
  const auto x = [] { return zeros({2, 3}); };
  calls.insert({"rms_norm", {[=] { rms_norm(x(), zeros({2})); }, {"[3]", "f32[2]"}}});
  calls.insert({"rms_norm", {[=] { rms_norm(x(), zeros({3}, DType::f64)); }, {"f64[3]"}}});
  calls.insert({"rms_norm", {[] { rms_norm(zeros({}), {}); }, {"no last dimension"}}});
  calls.insert({"rms_norm", {[] { rms_norm(zeros({3}, DType::i64), {}); }, {"i64[3]"}}});
  calls.insert(
      {"rms_norm_backward",
       {[=] {
          apply(Op::rms_norm_backward, {x(), x(), zeros({3}), zeros({3})}, RmsNormAttributes{});
        },
        {"f32[2, 3]", "f32[3]"}}});

  const auto turn = [](const Shape& shape, const Shape& cosines, const Shape& sines,
                       DType dtype = DType::f32, DType tables = DType::f32) {
    rope(zeros(shape, dtype), zeros(cosines, tables), zeros(sines, tables), RopeLayout::half_split);
  };
  calls.insert({"rope", {[=] { turn({2, 1, 3, 5}, {1, 3, 2}, {1, 3, 2}); }, {"even", "5]"}}});
  calls.insert({"rope", {[=] { turn({2, 3, 4}, {1, 3, 2}, {1, 3, 2}); }, {"[2, 3, 4]"}}});
  calls.insert({"rope",
                {[=] {
                   turn({2, 1, 3, 4}, {1, 4, 2}, {1, 3, 2});
                 },
                 {"cosines", "[1, 3, 2]", "[1, 4, 2]"}}});
  calls.insert({"rope",
                {[=] {
                   turn({2, 1, 3, 4}, {2, 3, 2}, {3, 3, 2});
                 },
                 {"sines", "[2, 3, 2]", "[3, 3, 2]"}}});
  calls.insert({"rope", {[=] { turn({2, 1, 3, 4}, {1, 3, 2}, {2, 3, 2}); }, {"differ"}}});
  // Positions beyond 256 have no angle of their own in bf16.
  calls.insert({"rope",
                {[=] {
                   turn({2, 1, 3, 4}, {1, 3, 2}, {1, 3, 2}, DType::bf16, DType::bf16);
                 },
                 {"must be f32", "bf16"}}});

  calls.insert({"swiglu", {[=] { swiglu(x(), zeros({3})); }, {"f32[2, 3]", "f32[3]"}}});
  calls.insert({"swiglu", {[=] { swiglu(x(), zeros({2, 3}, DType::f64)); }, {"f64[2, 3]"}}});
}

WrongCalls wrong_calls() {
  WrongCalls calls;
  add_unary(calls);
  add_binary(calls);
  add_layout(calls);
  add_reductions(calls);
  add_network(calls);
  add_attention(calls);
  add_llama(calls);
  return calls;
}

TEST(EveryOp, RefusesAWrongCallNamingItselfAndWhatItGot) {
  const WrongCalls calls = wrong_calls();
  for (const OpDefinition& op : all_ops()) {
    EXPECT_TRUE(calls.contains(op.name))
        << op.name
        << " has no wrong call; add one in tests/autograd/errors_test.cpp, with what its message "
           "must name";
  }
  int index = 0;
  for (const auto& [op, wrong] : calls) {
    SCOPED_TRACE(fmt::format("wrong call {} of {}", index++, op));
    try {
      wrong.call();
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(op), std::string::npos) << text;
      for (const std::string& part : wrong.names) {
        EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
      }
    }
  }
}

// A call that fails leaves the tape and the allocator as they were.
TEST(EveryOp, LeavesNothingBehindWhenACallIsRefused) {
  Context context;
  const ContextGuard guard(context);
  for (const auto& [op, wrong] : wrong_calls()) EXPECT_THROW(wrong.call(), InvalidArgument) << op;
  EXPECT_EQ(context.allocator->stats().live_blocks, 0);
}

}  // namespace
}  // namespace faultline
