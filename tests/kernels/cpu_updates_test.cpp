#include <gtest/gtest.h>

#include <complex>

#include "kernels/attributes.h"
#include "kernels/kernels.h"
#include "tests/kernels/cpu_call.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

const std::vector<int64_t> kCounts = {1, 1024, 0, 17, 70001, 1025, 5};

// Tensors of an optimizer, and the table that a launch takes.
struct Many {
  std::vector<Tensor> parameters, gradients, first, second;

  explicit Many(uint64_t stream) {
    for (const int64_t n : kCounts) {
      parameters.push_back(normal_tensor({n}, stream + 1));
      gradients.push_back(normal_tensor({n}, stream + 2));
      first.push_back(normal_tensor({n}, stream + 3, 0.1));
      auto squares = normal_values(n, stream + 4, 0.1);
      for (float& v : squares) v *= v;
      second.push_back(tensor(squares, {n}));
    }
  }
  Tensor updates() const {
    std::vector<UpdateTensors> rows;
    for (size_t i = 0; i < kCounts.size(); ++i) {
      rows.push_back(
          {data(parameters[i]), data(gradients[i]), data(first[i]), data(second[i]), kCounts[i]});
    }
    return bytes(rows);
  }
  Tensor spans() const {
    std::vector<TensorSpan> rows;
    for (size_t i = 0; i < kCounts.size(); ++i) rows.push_back({data(gradients[i]), kCounts[i]});
    return bytes(rows);
  }

  static float* data(const Tensor& x) { return reinterpret_cast<float*>(x.view().data); }
  template <class Row>
  static Tensor bytes(const std::vector<Row>& rows) {
    const auto* begin = reinterpret_cast<const uint8_t*>(rows.data());
    const size_t size = rows.size() * sizeof(Row);
    return tensor(std::span<const uint8_t>(begin, size), {static_cast<int64_t>(size)});
  }
};

Tensor number(double x) { return tensor({x}, {1}); }

void step_adamw(const Many& many, const AdamwAttributes& attributes, double factor, int threads) {
  CpuCall()
      .in(many.updates())
      .in(tensor({1 - std::pow(attributes.beta1, 7), 1 - std::pow(attributes.beta2, 7)}, {2}))
      .in(number(1e-2))
      .in(factor == 1 ? Tensor() : number(factor))
      .out({})
      .with(attributes)
      .threads(threads)
      .run(&kernels::run_adamw);
}

TEST(CpuUpdates, AdamwAgreesWithDouble) {
  const AdamwAttributes a = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (const double factor : {1.0, 0.37}) {
    const Many before(10);
    const Many after(10);
    step_adamw(after, a, factor, 1);
    const double c1 = 1 - std::pow(a.beta1, 7);
    const double c2 = 1 - std::pow(a.beta2, 7);
    for (size_t t = 0; t < kCounts.size(); ++t) {
      const auto p = before.parameters[t].to_vector<double>();
      const auto g = before.gradients[t].to_vector<double>();
      const auto m = before.first[t].to_vector<double>();
      const auto v = before.second[t].to_vector<double>();
      std::vector<double> p1, m1, v1, p_allowed, m_allowed, v_allowed;
      for (size_t i = 0; i < p.size(); ++i) {
        const double s = factor * g[i];
        m1.push_back(m[i] + (1 - a.beta1) * (s - m[i]));
        v1.push_back(a.beta2 * v[i] + (1 - a.beta2) * s * s);
        const double step = 1e-2 / c1 * m1[i] / (std::sqrt(v1[i]) / std::sqrt(c2) + a.epsilon);
        p1.push_back(p[i] * (1 - 1e-2 * a.weight_decay) - step);
        // Each f32 factor and operation adds one relative rounding of its operand.
        m_allowed.push_back(kEpsilon * (std::abs(m[i]) + 5 * (std::abs(s) + std::abs(m[i]))));
        v_allowed.push_back(kEpsilon * 7 * v1[i]);
        const double root = std::sqrt(v1[i]) / std::sqrt(c2) + a.epsilon;
        p_allowed.push_back(kEpsilon * (3 * std::abs(p[i]) + 12 * std::abs(step)) +
                            1e-2 / c1 * m_allowed[i] / root);
      }
      EXPECT_TRUE(within(after.first[t].to_vector<double>(), m1, m_allowed));
      EXPECT_TRUE(within(after.second[t].to_vector<double>(), v1, v_allowed));
      EXPECT_TRUE(within(after.parameters[t].to_vector<double>(), p1, p_allowed));
    }
  }
}

TEST(CpuUpdates, AdamwDecaysAParameterWithoutAGradient) {
  // 2 (1 - 0.5 * 0.5) = 1.5, exactly: decay does not go through the moments.
  Tensor p = tensor({2.0F}, {1});
  const Tensor zeros = tensor({0.0F, 0.0F, 0.0F}, {3});
  float* z = Many::data(zeros);
  const Tensor table = Many::bytes(std::vector<UpdateTensors>{{Many::data(p), z, z + 1, z + 2, 1}});
  CpuCall()
      .in(table)
      .in(tensor({0.1, 0.05}, {2}))
      .in(number(0.5))
      .in({})
      .out({})
      .with(AdamwAttributes{.weight_decay = 0.5})
      .run(&kernels::run_adamw);
  EXPECT_EQ(p.item<float>(), 1.5F);
}

TEST(CpuUpdates, ThreadsDoNotChangeABit) {
  const Many one(20);
  step_adamw(one, {.weight_decay = 0.1}, 0.5, 1);
  for (const int threads : {2, 4}) {
    const Many several(20);
    step_adamw(several, {.weight_decay = 0.1}, 0.5, threads);
    for (size_t t = 0; t < kCounts.size(); ++t) {
      EXPECT_TRUE(same_bits(several.parameters[t], one.parameters[t]));
      EXPECT_TRUE(same_bits(several.first[t], one.first[t]));
      EXPECT_TRUE(same_bits(several.second[t], one.second[t]));
    }
  }
}

TEST(CpuUpdates, SgdAgreesWithDouble) {
  for (const bool nesterov : {false, true}) {
    const SgdAttributes a = {.momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov};
    const Many before(30);
    const Many after(30);
    CpuCall()
        .in(after.updates())
        .in({})
        .in(number(0.1))
        .in(number(0.5))
        .out({})
        .with(a)
        .threads(2)
        .run(&kernels::run_sgd);
    for (size_t t = 0; t < kCounts.size(); ++t) {
      const auto p = before.parameters[t].to_vector<double>();
      const auto g = before.gradients[t].to_vector<double>();
      const auto b = before.first[t].to_vector<double>();
      std::vector<double> p1, b1, p_allowed, b_allowed;
      for (size_t i = 0; i < p.size(); ++i) {
        const double s = 0.5 * g[i] + 0.01 * p[i];
        b1.push_back(0.9 * b[i] + s);
        p1.push_back(p[i] - 0.1 * (nesterov ? s + 0.9 * b1[i] : b1[i]));
        const double size = std::abs(g[i]) + std::abs(p[i]) + std::abs(b[i]);
        b_allowed.push_back(6 * kEpsilon * size);  // six roundings
        p_allowed.push_back(2 * kEpsilon * std::abs(p[i]) + 12 * kEpsilon * size);
      }
      EXPECT_TRUE(within(after.first[t].to_vector<double>(), b1, b_allowed));
      EXPECT_TRUE(within(after.parameters[t].to_vector<double>(), p1, p_allowed));
    }
  }
}

TEST(CpuUpdates, SgdWithoutMomentumNeedsNoBuffer) {
  const Tensor p = tensor({1.0F, 2.0F, 3.0F}, {3});
  const Tensor g = tensor({4.0F, 8.0F, -4.0F}, {3});
  const Tensor table =
      Many::bytes(std::vector<UpdateTensors>{{Many::data(p), Many::data(g), nullptr, nullptr, 3}});
  CpuCall()
      .in(table)
      .in({})
      .in(number(0.25))
      .in({})
      .out({})
      .with(SgdAttributes{})
      .run(&kernels::run_sgd);
  EXPECT_EQ(p.to_vector<float>(), (std::vector<float>{0.0F, 0.0F, 4.0F}));
}

TEST(CpuUpdates, SumOfSquaresIsInDouble) {
  const Many many(40);
  double expected = 0;
  for (const Tensor& g : many.gradients) {
    for (const double x : g.to_vector<double>()) expected += x * x;
  }
  const auto sum = [&](int threads) {
    return CpuCall()
        .in(many.spans())
        .out(unwritten({1}, DType::f64))
        .threads(threads)
        .run(&kernels::run_sum_of_squares)
        .item<double>();
  };
  // Two orders of 42,075 positive terms: 2 n 2^-53 relative.
  EXPECT_NEAR(sum(1), expected, expected * 2 * 42075 * 0x1p-53);
  EXPECT_EQ(sum(2), sum(1));
  EXPECT_EQ(sum(4), sum(1));
}

TEST(CpuUpdates, AccumulateAddsInEveryNumericDtype) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64,
                            DType::u8, DType::c128}) {
    SCOPED_TRACE(std::string(name(dtype)));
    for (const int64_t n : {0, 1, 17, 40001}) {
      Tensor x = empty({n}, dtype);
      Tensor y = empty({n}, dtype);
      with_type(dtype, [&]<class T>() {
        for (int64_t i = 0; i < n; ++i) {
          reinterpret_cast<T*>(x.view().data)[i] = convert<T>(static_cast<double>(i % 100));
          reinterpret_cast<T*>(y.view().data)[i] = convert<T>(2.0);
        }
      });
      CpuCall().in(x).out(y).threads(4).run(&kernels::run_accumulate);
      const auto sums = y.to_vector<double>();
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sums[static_cast<size_t>(i)], i % 100 + 2);
    }
  }
}

}  // namespace
}  // namespace faultline::test
