#include "autograd/rules.h"

namespace faultline {

void same_as_input(std::span<const Tensor> inputs, const Attributes&,
                   std::span<OutputSpec> outputs) {
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
}

void broadcast_shape(std::span<const Tensor> inputs, const char* op,
                     std::span<OutputSpec> outputs) {
  require(inputs.size() == 2, "{}: takes 2 tensors, got {}", op, inputs.size());
  require_same_dtype(inputs[0], inputs[1], op);
  outputs[0] = {broadcast(inputs[0].shape(), inputs[1].shape(), op), inputs[0].dtype()};
}

void require_integers(const Tensor& tensor, const char* op, const char* what) {
  require(tensor.defined(), "{}: needs {}, got an undefined tensor", op, what);
  require(tensor.dtype() == DType::i32 || tensor.dtype() == DType::i64,
          "{}: {} must be i32 or i64, got {}", op, what, tensor);
}

void require_floats(const Tensor& tensor, const char* op) {
  require(is_floating(tensor.dtype()), "{}: needs a float dtype, got {}", op, tensor);
}

void require_same_dtype(const Tensor& a, const Tensor& b, const char* op) {
  require(a.defined() && b.defined(), "{}: needs two tensors, got {} and {}", op, a, b);
  require(a.dtype() == b.dtype(), "{}: dtypes differ, {} and {}; cast one of them", op, a, b);
}

void require_alike(const Tensor& a, const Tensor& b, const char* op) {
  require_same_dtype(a, b, op);
  require(a.shape() == b.shape(), "{}: shapes differ, {} and {}", op, a, b);
}

DType at_least_f32(DType dtype) { return size_of(dtype) == 2 ? DType::f32 : dtype; }

}  // namespace faultline
