// softmax and its relatives, cross entropy, layer norm: exact cases, and every backward kernel
// against the complex step through its forward kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <vector>

#include "core/rng.h"
#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/reference_arguments.h"

namespace faultline {
namespace {
using testing::KernelCall;
using Complex = std::complex<double>;
using Doubles = std::vector<double>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Doubles random_values(int64_t count, uint64_t stream) {
  const RandomSequence random(11, stream);
  Doubles values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.normal(static_cast<uint64_t>(i)));
  return values;
}

std::vector<Complex> complex_of(const Doubles& values) { return {values.begin(), values.end()}; }

// d/dx_i of sum_j dy_j f(x)_j, by complex step, for every i.
Doubles gradient(const Doubles& x, const Doubles& dy,
                 const std::function<std::vector<Complex>(const std::vector<Complex>&)>& f) {
  constexpr double kStep = 1e-20;
  Doubles result;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<Complex> stepped = complex_of(x);
    stepped[i] += Complex(0, kStep);
    const std::vector<Complex> y = f(stepped);
    double sum = 0;
    for (size_t j = 0; j < y.size(); ++j) sum += dy[j] * y[j].imag() / kStep;
    result.push_back(sum);
  }
  return result;
}

// Both sides are sums of some dozen terms of size about 1 in double.
constexpr double kTolerance = 1e-13;

void expect_close(const Doubles& got, const Doubles& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], kTolerance) << i;
}

Doubles row_kernel(Kernel kernel, const Doubles& x, const Shape& shape) {
  return KernelCall().in(x, shape).out<double>(shape).run<double>(kernel);
}

TEST(ReferenceSoftmax, OfEqualScoresIsUniform) {
  EXPECT_EQ(row_kernel(&reference::softmax, {3, 3, 3, 3}, {1, 4}), (Doubles{.25, .25, .25, .25}));
  EXPECT_EQ(row_kernel(&reference::softmax, {1e308, -1e308}, {2}), (Doubles{1, 0}));
  EXPECT_EQ(row_kernel(&reference::log_softmax, {1000, 0}, {2}), (Doubles{0, -1000}));
  EXPECT_EQ(row_kernel(&reference::softmax, {7}, {}), (Doubles{1}));
}

TEST(ReferenceSoftmax, BackwardIsTheComplexStep) {
  const Shape shape = {2, 5};
  const Doubles x = random_values(10, 1);
  const Doubles dy = random_values(10, 2);
  const std::pair<Kernel, Kernel> kernels[] = {
      {&reference::softmax, &reference::softmax_backward},
      {&reference::log_softmax, &reference::log_softmax_backward}};
  for (const auto& [forward, backward] : kernels) {
    const Doubles y = row_kernel(forward, x, shape);
    expect_close(KernelCall().in(dy, shape).in(y, shape).out<double>(shape).run<double>(backward),
                 gradient(x, dy, [&, run = forward](const std::vector<Complex>& stepped) {
                   return KernelCall().in(stepped, shape).out<Complex>(shape).run<Complex>(run);
                 }));
  }
}

TEST(ReferenceMaskedSoftmax, SeesOnlyWhatTheMaskAllows) {
  // One head, two queries at positions 1 and 2 of four keys; key 0 is padding.
  const Shape shape = {1, 1, 2, 4};
  const Doubles scores = {kNan, 0, kNan, kNan, kNan, 0, std::log(3.0) / 2, kNan};
  const MaskAttributes mask{.causal = true, .query_offset = 1, .scale = 2};
  const auto y = KernelCall()
                     .in(scores, shape)
                     .in(std::vector<bool>{false, true, true, true}, {1, 4})
                     .absent()
                     .out<double>(shape)
                     .with(mask)
                     .run<double>(&reference::masked_softmax);
  expect_close(y, {0, 1, 0, 0, 0, 0.25, 0.75, 0});
}

TEST(ReferenceMaskedSoftmax, GivesZerosToAQueryWithoutKeys) {
  EXPECT_EQ(KernelCall()
                .in(Doubles{kNan, 5}, {1, 1, 1, 2})
                .in(std::vector<bool>{false, false}, {1, 2})
                .absent()
                .out<double>({1, 1, 1, 2})
                .with(MaskAttributes{.causal = false})
                .run<double>(&reference::masked_softmax),
            (Doubles{0, 0}));
}

TEST(ReferenceMaskedSoftmax, StaysInsideDocumentsOfEachBatchElement) {
  const auto y = KernelCall()
                     .in(Doubles(18, 1.0), {2, 1, 3, 3})
                     .absent()
                     .in(std::vector<int32_t>{0, 1, 1, 5, 5, 6}, {2, 3})
                     .out<double>({2, 1, 3, 3})
                     .with(MaskAttributes{})
                     .run<double>(&reference::masked_softmax);
  EXPECT_EQ(y, (Doubles{1, 0, 0, 0, 1, 0, 0, .5, .5, 1, 0, 0, .5, .5, 0, 0, 0, 1}));
}

TEST(ReferenceMaskedSoftmax, NeedsQueriesAmongTheKeysForDocuments) {
  KernelCall call;
  call.in(Doubles(2), {1, 1, 1, 2})
      .absent()
      .in(std::vector<int32_t>{0, 0}, {1, 2})
      .out<double>({1, 1, 1, 2})
      .with(MaskAttributes{.query_offset = 2});
  EXPECT_THROW(call.run<double>(&reference::masked_softmax), InvalidArgument);
}

TEST(ReferenceCrossEntropy, OfUniformLogitsIsLogOfTheClasses) {
  KernelCall call;
  const auto loss = call.in(Doubles{1000, 1000, 1000, 1000, 0, 7, 7, 7}, {2, 4})
                        .in(std::vector<int64_t>{2, -1}, {2})
                        .out<double>({2})
                        .out<double>({2})
                        .with(CrossEntropyAttributes{})
                        .run<double>(&reference::cross_entropy);
  EXPECT_NEAR(loss[0], std::log(4.0), 1e-12);  // an ulp of 1000 is 1.1e-13
  EXPECT_EQ(loss[1], 0);
  EXPECT_NEAR(call.result<double>(1)[0], 1000 + std::log(4.0), 1e-12);
}

TEST(ReferenceCrossEntropy, NamesALabelThatIsNoClass) {
  for (const int64_t label : {int64_t{-1}, int64_t{3}, int64_t{1} << 40}) {
    KernelCall call;
    call.in(Doubles(6), {2, 3})
        .in(std::vector<int64_t>{0, label}, {2})
        .out<double>({2})
        .out<double>({2})
        .with(CrossEntropyAttributes{.ignore_index = -100});
    try {
      call.run<double>(&reference::cross_entropy);
      FAIL() << "label " << label << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(label)), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("3 classes"), std::string::npos);
    }
  }
}

TEST(ReferenceCrossEntropy, BackwardIsTheComplexStep) {
  const Shape shape = {3, 4};
  const Doubles x = random_values(12, 3);
  const Doubles dloss = {1, 0.5, -2};
  const std::vector<int64_t> labels = {3, -1, 0};
  const auto forward = [&]<class T>(const std::vector<T>& logits, KernelCall& call) {
    return call.in(logits, shape)
        .in(labels, {3})
        .template out<T>({3})
        .template out<T>({3})
        .with(CrossEntropyAttributes{})
        .template run<T>(&reference::cross_entropy);
  };
  KernelCall call;
  forward(x, call);
  expect_close(KernelCall()
                   .in(x, shape)
                   .in(labels, {3})
                   .in(call.result<double>(1), {3})
                   .in(dloss, {3})
                   .out<double>(shape)
                   .with(CrossEntropyAttributes{})
                   .run<double>(&reference::cross_entropy_backward),
               gradient(x, dloss, [&](const std::vector<Complex>& stepped) {
                 KernelCall complex_call;
                 return forward(stepped, complex_call);
               }));
}

TEST(ReferenceLayerNorm, MatchesHandComputation) {
  KernelCall call;
  const auto y = call.in(Doubles{1, 3, 5, 5}, {2, 2})
                     .in(Doubles{2, 10}, {2})
                     .in(Doubles{100, 200}, {2})
                     .out<double>({2, 2})
                     .out<double>({2})
                     .out<double>({2})
                     .with(LayerNormAttributes{.epsilon = 3})
                     .run<double>(&reference::layer_norm);
  EXPECT_EQ(y, (Doubles{99, 205, 100, 200}));  // row 0: mean 2, variance 1, 1 / sqrt(1 + 3)
  EXPECT_EQ(call.result<double>(1), (Doubles{2, 5}));
  EXPECT_EQ(call.result<double>(2)[0], 0.5);
}

TEST(ReferenceLayerNorm, BackwardIsTheComplexStep) {
  const Shape shape = {2, 5};
  const Doubles x = random_values(10, 4);
  const Doubles dy = random_values(10, 5);
  const Doubles weight = random_values(5, 6);
  const Doubles bias = random_values(5, 7);
  const auto forward = [&]<class T>(const std::vector<T>& rows, const std::vector<T>& scale,
                                    const std::vector<T>& shift, KernelCall& call) {
    return call.in(rows, shape)
        .in(scale, {5})
        .in(shift, {5})
        .template out<T>(shape)
        .template out<T>({2})
        .template out<T>({2})
        .with(LayerNormAttributes{})
        .template run<T>(&reference::layer_norm);
  };
  KernelCall call;
  forward(x, weight, bias, call);
  KernelCall backward;
  const auto dx = backward.in(dy, shape)
                      .in(x, shape)
                      .in(weight, {5})
                      .in(call.result<double>(1), {2})
                      .in(call.result<double>(2), {2})
                      .out<double>(shape)
                      .out<double>({5})
                      .out<double>({5})
                      .with(LayerNormAttributes{})
                      .run<double>(&reference::layer_norm_backward);
  const auto cx = complex_of(x);
  const auto cw = complex_of(weight);
  const auto cb = complex_of(bias);
  using Values = std::vector<Complex>;
  expect_close(dx, gradient(x, dy, [&](const Values& stepped) {
                 KernelCall c;
                 return forward(stepped, cw, cb, c);
               }));
  expect_close(backward.result<double>(1), gradient(weight, dy, [&](const Values& stepped) {
                 KernelCall c;
                 return forward(cx, stepped, cb, c);
               }));
  expect_close(backward.result<double>(2), gradient(bias, dy, [&](const Values& stepped) {
                 KernelCall c;
                 return forward(cx, cw, stepped, c);
               }));
}

}  // namespace
}  // namespace faultline
