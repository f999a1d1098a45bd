// Ops against PyTorch: tests/golden/ops_golden.safetensors, written by make_ops_golden.py in f64.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "autograd/functional.h"
#include "autograd/tape.h"
#include "io/safetensors.h"
#include "tests/support/compare.h"

namespace faultline::test {
namespace {

// One sample of the file: what stands behind "op.k.".
class Golden {
 public:
  explicit Golden(std::map<std::string, Tensor> tensors) : tensors_(std::move(tensors)) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  // A private copy, so that it can be a leaf.
  Tensor input(const std::string& name) {
    const auto found = leaves_.find(name);
    if (found != leaves_.end()) return found->second;
    Tensor leaf = clone(tensors_.at(name));
    if (is_floating(leaf.dtype())) set_requires_grad(leaf);
    return leaves_[name] = leaf;
  }
  Tensor optional(const std::string& name) { return has(name) ? input(name) : Tensor(); }
  const Tensor& expected(const std::string& name) const { return tensors_.at(name); }
  int64_t number(const std::string& name) const { return tensors_.at(name).item<int64_t>(); }
  std::vector<int64_t> numbers(const std::string& name) const {
    return tensors_.at(name).to_vector<int64_t>();
  }
  const std::map<std::string, Tensor>& leaves() const { return leaves_; }

 private:
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Tensor> leaves_;
};

using Function = std::function<Tensor(Golden&)>;

// Ours work along the last dimension.
Tensor along(Golden& g, Tensor (*rows)(const Tensor&, Site)) {
  const Tensor x = g.input("x");
  return transpose(rows(transpose(x, g.number("dim"), -1), Site::here()), g.number("dim"), -1);
}

template <class Reduction>
Function folding(Reduction reduction) {
  return [reduction](Golden& g) {
    const KeepDim keep = g.number("keep") != 0 ? KeepDim::yes : KeepDim::no;
    return reduction(g.input("x"), g.numbers("dims"), keep, Site::here());
  };
}

template <class Unary>
Function of_x(Unary unary) {
  return [unary](Golden& g) { return unary(g.input("x"), Site::here()); };
}

template <class Binary>
Function of_a_b(Binary binary) {
  return [binary](Golden& g) { return binary(g.input("a"), g.input("b"), Site::here()); };
}

std::map<std::string, Function> functions() {
  return {
      {"gelu", of_x(gelu)},
      {"gelu_erf", of_x(gelu_erf)},
      {"silu", of_x(silu)},
      {"relu", of_x(relu)},
      {"sigmoid", of_x(sigmoid)},
      {"tanh", of_x(static_cast<Tensor (*)(const Tensor&, Site)>(tanh))},
      {"rsqrt", of_x(rsqrt)},
      {"div", of_a_b(static_cast<Tensor (*)(const Tensor&, const Tensor&, Site)>(div))},
      {"maximum", of_a_b(maximum)},
      {"matmul", of_a_b(matmul)},
      {"where",
       [](Golden& g) {
         return where(cast(g.input("condition"), DType::boolean), g.input("a"), g.input("b"));
       }},
      {"sum", folding(sum)},
      {"mean", folding(mean)},
      {"amax", folding(amax)},
      {"softmax", [](Golden& g) { return along(g, softmax); }},
      {"log_softmax", [](Golden& g) { return along(g, log_softmax); }},
      {"layer_norm",
       [](Golden& g) {
         return layer_norm(g.input("x"), g.input("weight"), g.input("bias"), 1e-5);
       }},
      {"cross_entropy",
       [](Golden& g) { return cross_entropy_rows(g.input("x"), g.input("labels"), -1); }},
      {"embedding", [](Golden& g) { return embedding(g.input("weight"), g.input("ids")); }},
      {"linear",
       [](Golden& g) { return linear(g.input("x"), g.input("weight"), g.optional("bias")); }},
      {"cat",
       [](Golden& g) {
         const std::vector<Tensor> parts{g.input("a"), g.input("b"), g.input("c")};
         return cat(parts, g.number("dim"));
       }},
      {"slice",
       [](Golden& g) {
         return slice(g.input("x"), g.number("dim"), g.number("begin"), g.number("end"));
       }},
      {"index_select",
       [](Golden& g) { return index_select(g.input("x"), g.number("dim"), g.input("index")); }},
  };
}

std::map<std::string, std::map<std::string, Tensor>> samples_by_name() {
  const char* root = std::getenv("FAULTLINE_SOURCE_DIR");
  const std::string folder = root != nullptr ? std::string(root) + "/" : "";
  const Safetensors file = read_safetensors(folder + "tests/golden/ops_golden.safetensors");
  std::map<std::string, std::map<std::string, Tensor>> samples;
  for (const auto& [name, tensor] : file.tensors) {
    const size_t dot = name.rfind('.');
    samples[name.substr(0, dot)][name.substr(dot + 1)] = tensor;
  }
  return samples;
}

// PyTorch and we both compute in f64; sums and exponentials round differently, by less than some
// hundred roundings of the largest element.
testing::AssertionResult agrees(const Tensor& actual, const Tensor& expected) {
  double largest = 1;
  for (const double value : expected.to_vector<double>()) {
    largest = std::max(largest, std::abs(value));
  }
  return close(actual, expected, {.absolute = 5e-14 * largest});
}

TEST(Golden, OutputsAndGradientsOfOpsArePyTorchs) {
  const auto ops = functions();
  std::set<std::string> seen;
  for (const auto& [name, tensors] : samples_by_name()) {
    SCOPED_TRACE(name);
    const std::string op = name.substr(0, name.find('.'));
    const auto function = ops.find(op);
    ASSERT_TRUE(function != ops.end()) << "the file has an op that this test does not know";
    seen.insert(op);
    Golden golden(tensors);
    const Tensor y = function->second(golden);
    EXPECT_TRUE(agrees(y, golden.expected("y")));
    backward(y, golden.expected("dy"));
    for (const auto& [input, leaf] : golden.leaves()) {
      if (!is_floating(leaf.dtype())) continue;
      SCOPED_TRACE("d" + input);
      ASSERT_TRUE(gradient(leaf).defined());
      EXPECT_TRUE(agrees(gradient(leaf), golden.expected("d" + input)));
    }
  }
  EXPECT_EQ(seen.size(), ops.size()) << "an op of this test is not in the file";
}

}  // namespace
}  // namespace faultline::test
