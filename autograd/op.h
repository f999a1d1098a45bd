#pragma once

#include <array>
#include <span>

#include "core/op.h"
#include "core/tensor.h"

namespace faultline {

// A few tensors by value; no heap.
template <int Capacity>
class TensorList {
 public:
  TensorList() = default;
  TensorList(std::initializer_list<Tensor> tensors) {  // NOLINT: reads as a list of tensors
    for (const Tensor& tensor : tensors) push_back(tensor);
  }
  void push_back(Tensor tensor) {
    invariant(size_ < Capacity, "tensor list: more than {} tensors", Capacity);
    items_[size_++] = std::move(tensor);
  }
  int size() const { return size_; }
  Tensor& operator[](int i) { return items_[i]; }
  const Tensor& operator[](int i) const { return items_[i]; }
  Tensor* begin() { return items_.data(); }
  Tensor* end() { return items_.data() + size_; }
  const Tensor* begin() const { return items_.data(); }
  const Tensor* end() const { return items_.data() + size_; }

 private:
  std::array<Tensor, Capacity> items_;
  int size_ = 0;
};

using Outputs = TensorList<kMaxOutputs>;
// One gradient per input; undefined where there is none.
using Grads = TensorList<kMaxInputs>;

// What a shape rule says of one output.
struct OutputSpec {
  Shape shape;
  DType dtype = DType::f32;
};

// Validates the inputs (throwing InvalidArgument that names the op and the shapes) and fills one
// spec per output.
using ShapeRule = void (*)(std::span<const Tensor> inputs, const Attributes& attributes,
                           std::span<OutputSpec> outputs);

// For ops without a kernel: builds output number `index` as an alias of the input.
using ViewRule = Tensor (*)(const Tensor& input, const Attributes& attributes,
                            const OutputSpec& output, int index);

class Saved;
// Gradients of the inputs from those of the outputs (undefined where an output had no use). May
// return a gradient of the broadcast shape; the engine sums it to the input's shape.
using Derivative = Grads (*)(const Saved& saved, std::span<const Tensor> output_grads);

// The part of an op that its own file in autograd/ops/ writes.
struct OpRules {
  ShapeRule shape = nullptr;
  Derivative derivative = nullptr;  // null: the op has none, and asking for one throws
  ViewRule view = nullptr;
  double (*flops)(const KernelArgs& args) = nullptr;  // null: one per output element
};

// The whole of an op: the columns of its row in core/ops.def, its rules and kernels. An op outside
// the tree is such a value too; `apply` takes any.
struct OpDefinition {
  const char* name;
  int inputs;
  int outputs;
  uint32_t differentiable;  // bit i: input i
  uint32_t saved_inputs;
  uint32_t saved_outputs;
  Autocast autocast;
  Determinism determinism;
  Kernels kernels;
  const OpRules* rules;
  KernelRecord cpu;        // f32, f16, bf16; null `run`: the reference serves them
  KernelRecord reference;  // f64, c128, integers
};

// The row of one of our ops.
const OpDefinition& definition(Op op);
// All of them, in the order of the table.
std::span<const OpDefinition> all_ops();

// What the tape kept for a derivative.
class Saved {
 public:
  // Input or output i. Throws InternalError when the row does not save it, and InvalidArgument when
  // it was changed in place since, naming both ops.
  const Tensor& input(int i) const;
  const Tensor& output(int i) const;
  const Attributes& attributes() const;
  // Whether anybody wants the gradient of input i: an expensive one can be left out.
  bool wants(int i) const;
  const Shape& input_shape(int i) const;
  DType input_dtype(int i) const;
  // Whether input i was given (for optional inputs).
  bool has_input(int i) const;

 private:
  friend class Engine;
  explicit Saved(const struct Node& node) : node_(node) {}
  const struct Node& node_;
};

// The choke point: validates, casts by the autocast column, infers shapes, selects a kernel,
// allocates, launches and records. Every op of the framework and of its users goes through here.
Outputs apply(const OpDefinition& op, std::span<const Tensor> inputs,
              const Attributes& attributes = {}, Site site = Site::here());
// The first output of one of our ops.
Tensor apply(Op op, std::initializer_list<Tensor> inputs, const Attributes& attributes = {},
             Site site = Site::here());

// How a kernel is selected for an op; the reason stands in the launch's label.
struct Selection {
  const KernelRecord* kernel = nullptr;
  const char* reason = "";
};

struct SelectionRequest {
  const OpDefinition& op;
  DType dtype;  // of the computation: the widest floating input, else the first input's
};

struct KernelSeam {
  static constexpr const char* name = "kernel selection";
  using Signature = Selection(const SelectionRequest&);
  // The cpu kernel for f32 and 16-bit types where there is one, else the reference. Throws
  // InvalidArgument when the op has none for the dtype.
  static Selection standard(const SelectionRequest& request);
};

// Defines the rules of an op: RULES(softmax) = {.shape = ..., .derivative = ...};
#define RULES(name)                               \
  extern const ::faultline::OpRules rules_##name; \
  const ::faultline::OpRules rules_##name

}  // namespace faultline
