#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/functional.h"
#include "core/tensor.h"

// One row per op of core/ops.def (or several, where an op has more than one way to be used), from
// which the tests of every op are generated.
namespace faultline::test {

// ---- host arrays, in which the oracles are written ----------------------------------------------
struct Dense {
  Shape shape;
  std::vector<double> values;  // row-major

  // The element that broadcasting puts at `index` of a shape of the same rank or higher.
  double at(const Dims& index) const;
};

// Every element from its index.
Dense generate(const Shape& shape, const std::function<double(const Dims& index)>& element);
Dense dense(const Tensor& tensor);

// dy pulled back through `f` to input `which`, by central differences of the oracle itself.
// Accurate to about 1e-9 for inputs and slopes of order one.
Dense pullback(const std::function<Dense(std::span<const Dense>)>& f, std::span<const Dense> inputs,
               size_t which, const Dense& dy);

// ---- samples ------------------------------------------------------------------------------------
enum class Kind : uint8_t { real, ids, booleans, key };

struct Input {
  Shape shape;
  Kind kind = Kind::real;
  // real: uniform in [low, high); with `both_signs` half of them negated. ids: whole numbers in
  // [low, high).
  double low = -2;
  double high = 2;
  bool both_signs = false;
  DType dtype = DType::i64;  // of ids
};

Input real(const Shape& shape, double low = -2, double high = 2);
// Away from zero, on both sides of it.
Input nonzero(const Shape& shape, double low = 0.3, double high = 2);
Input ids(const Shape& shape, int64_t end, DType dtype = DType::i64, int64_t begin = 0);
Input booleans(const Shape& shape);
// (seed, step, first sequence) of dropout.
Input key();

using Tensors = std::vector<Tensor>;
using Run = std::function<Tensors(std::span<const Tensor> inputs)>;
using Oracle = std::function<std::vector<Dense>(std::span<const Dense> inputs)>;

struct OpSample {
  std::string op;    // its name in the table
  std::string what;  // "[3, 1] and [5]"
  std::vector<Input> inputs;
  Run run;        // the outputs that are checked; the gradient is that of the first
  Oracle oracle;  // the same from host arrays, written without our kernels
  // How far the f64 reference may be from the oracle, relative to the largest output. Both round
  // in f64: sums of some hundred terms differ by less than 1e-12. Oracles by pullback say more.
  double oracle_tolerance = 1e-12;
  bool has_16_bit = true;   // runs on f16 and bf16 inputs
  bool floats_only = true;  // every output is floating and depends on the inputs continuously
  bool unit_scale = true;   // bends over distances of one, so that central differences resolve it

  std::string name() const { return op + " " + what; }
};

// How the inputs lie in memory. What lies between their elements is NaN or out of range.
enum class Layout : uint8_t { contiguous, transposed, strided, offset, expanded };
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::transposed, Layout::strided,
                               Layout::offset, Layout::expanded};
const char* name(Layout layout);

// The inputs of a sample, the same values on every call. `expanded` repeats the first index of each
// input's first dimension.
Tensors inputs_of(const OpSample& sample, DType dtype, Layout layout = Layout::contiguous);

// Whether the op has a derivative that flows from the first output to a floating input.
bool has_gradient(const OpSample& sample);

// All samples, in the order of the table.
const std::vector<OpSample>& op_samples();

// The families, one file each.
void add_unary_samples(std::vector<OpSample>& samples);
void add_binary_samples(std::vector<OpSample>& samples);
void add_layout_samples(std::vector<OpSample>& samples);
void add_reduction_samples(std::vector<OpSample>& samples);
void add_network_samples(std::vector<OpSample>& samples);
void add_attention_samples(std::vector<OpSample>& samples);
void add_llama_samples(std::vector<OpSample>& samples);

}  // namespace faultline::test
