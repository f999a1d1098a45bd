// For every row of core/ops.def: samples, an oracle, gradients, precision. A new op without samples
// fails here.

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "autograd/gradcheck.h"
#include "autograd/node.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "tests/support/compare.h"
#include "tests/support/op_samples.h"
#include "tests/support/rounding.h"

namespace faultline::test {
namespace {

bool differentiable(const std::string& op) {
  for (const OpDefinition& definition : all_ops()) {
    if (op == definition.name) return definition.differentiable != 0;
  }
  return false;
}

bool has_elements(const OpSample& sample) {
  return std::all_of(sample.inputs.begin(), sample.inputs.end(),
                     [](const Input& input) { return numel(input.shape) > 0; });
}

bool has_float_input(const OpSample& sample) {
  return std::any_of(sample.inputs.begin(), sample.inputs.end(),
                     [](const Input& input) { return input.kind == Kind::real; });
}

// What a check of every element costs grows with the square of their number.
bool is_small(const OpSample& sample) {
  int64_t elements = 0;
  for (const Input& input : sample.inputs) elements += numel(input.shape);
  return elements <= 500;
}

TensorFunction first_output(const OpSample& sample) {
  return [&sample](std::span<const Tensor> inputs) { return sample.run(inputs)[0]; };
}

void add_tape_of(const std::shared_ptr<Node>& node, std::set<std::string>& ops) {
  if (node == nullptr) return;
  ops.insert(node->op->name);
  for (const Node::Edge& edge : node->edges) add_tape_of(edge.node, ops);
}

// Which ops really ran, by their launches; a view has none and is seen on the tape.
std::set<std::string> ops_of(const OpSample& sample) {
  std::set<std::string> seen;
  const auto watch = Context::current().events.subscribe<LaunchEvent>(
      [&](const LaunchEvent& event) { seen.insert(event.launch.label.op); });
  const Tensors inputs = inputs_of(sample, DType::f64);
  for (const Tensor& input : inputs) {
    if (is_floating(input.dtype())) set_requires_grad(input);
  }
  const Tensors outputs = sample.run(inputs);
  if (requires_grad(outputs[0])) add_tape_of(outputs[0].autograd()->producer, seen);
  return seen;
}

struct Coverage {
  int samples = 0;
  int gradients = 0;
  uint32_t inputs = 0;  // bit i: input i had a gradient checked
};

TEST(EveryOp, HasSamplesAnOracleAndWhereDifferentiableAGradientCheck) {
  std::map<std::string, Coverage> covered;
  for (const OpSample& sample : op_samples()) {
    SCOPED_TRACE(sample.name());
    ASSERT_TRUE(sample.oracle != nullptr && sample.run != nullptr);
    EXPECT_TRUE(ops_of(sample).contains(sample.op)) << "the sample does not run its op";
    Coverage& coverage = covered[sample.op];
    ++coverage.samples;
    if (!has_gradient(sample) || !has_elements(sample) || !is_small(sample)) continue;
    ++coverage.gradients;
    for (size_t i = 0; i < sample.inputs.size() && i < kMaxInputs; ++i) {
      if (sample.inputs[i].kind == Kind::real) coverage.inputs |= 1U << i;
    }
  }
  for (const OpDefinition& op : all_ops()) {
    const auto found = covered.find(op.name);
    if (found == covered.end()) {
      ADD_FAILURE() << op.name << " has no sample; add a row in tests/support/samples_*.cpp";
      continue;
    }
    const Coverage& coverage = found->second;
    EXPECT_EQ(coverage.inputs & op.differentiable, op.differentiable)
        << op.name << ": no gradient check reaches one of its differentiable inputs";
    std::cout << fmt::format("{:24} samples {:2}, oracle, {}\n", op.name, coverage.samples,
                             op.differentiable == 0
                                 ? std::string("no derivative")
                                 : fmt::format("gradient checks {}", coverage.gradients));
    covered.erase(found);
  }
  EXPECT_TRUE(covered.empty()) << "samples of " << covered.begin()->first << ", which is no op";
}

// The f64 reference kernels against formulas that share nothing with them.
TEST(EveryOp, ReferenceAgreesWithAnIndependentOracle) {
  for (const OpSample& sample : op_samples()) {
    SCOPED_TRACE(sample.name());
    const Tensors inputs = inputs_of(sample, DType::f64);
    const Tensors outputs = sample.run(inputs);
    std::vector<Dense> arrays;
    for (const Tensor& input : inputs) arrays.push_back(dense(input));
    const std::vector<Dense> expected = sample.oracle(arrays);
    ASSERT_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].shape(), expected[i].shape);
      double largest = 1;
      for (const double value : expected[i].values) largest = std::max(largest, std::abs(value));
      EXPECT_TRUE(close(outputs[i].to_vector<double>(), expected[i].values,
                        {.absolute = sample.oracle_tolerance * largest}));
    }
  }
}

// The kernels of f32 and of the 16-bit types against the f64 reference, within what rounding in
// that dtype explains; whole numbers and bools exactly.
void check_precision(DType dtype, const std::function<bool(const OpSample&)>& applies,
                     const std::function<Run(const OpSample&)>& function) {
  for (const OpSample& sample : op_samples()) {
    if (!applies(sample)) continue;
    SCOPED_TRACE(sample.name());
    const Run run = function(sample);
    const Tensors inputs = inputs_of(sample, dtype);
    const Tensors wide = widened(inputs);
    const Tensors outputs = run(inputs);
    const Tensors expected = run(wide);
    if (!sample.floats_only) {
      EXPECT_TRUE(close(flattened(outputs), flattened(expected), {}));
      continue;
    }
    EXPECT_TRUE(within(flattened(outputs), flattened(expected), rounding_bound(run, wide, dtype)));
  }
}

bool always(const OpSample&) { return true; }
bool in_16_bit(const OpSample& sample) { return sample.has_16_bit; }
bool gradient_exists(const OpSample& sample) { return has_gradient(sample); }
Run forward(const OpSample& sample) { return sample.run; }
Run reverse(const OpSample& sample) { return gradient_of(sample.run); }

TEST(EveryOp, InF32IsAsCloseToF64AsRoundingAllows) { check_precision(DType::f32, always, forward); }
TEST(EveryOp, InF16IsAsCloseToF64AsRoundingAllows) {
  check_precision(DType::f16, in_16_bit, forward);
}
TEST(EveryOp, InBf16IsAsCloseToF64AsRoundingAllows) {
  check_precision(DType::bf16, in_16_bit, forward);
}
TEST(EveryOp, GradientInF32IsAsCloseToF64AsRoundingAllows) {
  check_precision(DType::f32, gradient_exists, reverse);
}

TEST(EveryDerivative, AgreesWithCentralDifferences) {
  for (const OpSample& sample : op_samples()) {
    if (!has_gradient(sample) || !has_elements(sample) || !is_small(sample)) continue;
    if (!sample.unit_scale) continue;  // the complex step below has no step to choose
    SCOPED_TRACE(sample.name());
    const GradcheckReport report = gradcheck(first_output(sample), inputs_of(sample, DType::f64));
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

TEST(EveryDerivative, AgreesWithTheComplexStep) {
  for (const OpSample& sample : op_samples()) {
    if (!has_gradient(sample) || !has_elements(sample) || !is_small(sample)) continue;
    SCOPED_TRACE(sample.name());
    const GradcheckReport report =
        complex_step(first_output(sample), inputs_of(sample, DType::f64));
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// Empty inputs: nothing to compare, but the gradients must come, with the inputs' shapes.
TEST(EveryDerivative, WorksOnEmptyTensors) {
  int checked = 0;
  for (const OpSample& sample : op_samples()) {
    if (!has_gradient(sample) || has_elements(sample)) continue;
    SCOPED_TRACE(sample.name());
    const Tensors inputs = inputs_of(sample, DType::f64);
    const Tensors found = gradient_of(sample.run)(inputs);
    size_t next = 0;
    for (const Tensor& input : inputs) {
      if (!is_floating(input.dtype())) continue;
      EXPECT_EQ(found[next++].shape(), input.shape());
    }
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

// An op whose column says that it has no derivative throws when one is asked for.
TEST(EveryOpWithoutDerivative, ThrowsNamingTheOpAndTheCallWhenAGradientIsAskedFor) {
  std::set<std::string> thrown;
  for (const OpSample& sample : op_samples()) {
    if (differentiable(sample.op) || !has_float_input(sample)) continue;
    Tensors inputs = inputs_of(sample, DType::f64);
    for (const Tensor& input : inputs) {
      if (is_floating(input.dtype())) set_requires_grad(input);
    }
    const Tensor output = sample.run(inputs)[0];
    // A bool or a whole number ends the gradient's path by itself.
    if (!is_floating(output.dtype())) {
      EXPECT_FALSE(requires_grad(output)) << sample.name();
      continue;
    }
    SCOPED_TRACE(sample.name());
    try {
      backward(output, ones(output.shape(), DType::f64));
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(sample.op), std::string::npos) << text;
      EXPECT_NE(text.find(".cpp:"), std::string::npos) << text;
      thrown.insert(sample.op);
    }
  }
  for (const OpDefinition& op : all_ops()) {
    const std::string name = op.name;
    if (op.differentiable == 0 && name.ends_with("_backward")) {
      EXPECT_TRUE(thrown.contains(name)) << name;
    }
  }
}

}  // namespace
}  // namespace faultline::test
