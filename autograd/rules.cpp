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

void require_mask(const MaskAttributes& mask, const Tensor& key_valid, const Tensor& documents,
                  const AttentionSizes& sizes, const char* op) {
  require(mask.window >= 0 && mask.prefix >= 0 && mask.sinks >= 0,
          "{}: window, prefix and sinks count keys and cannot be negative, got {}, {} and {}", op,
          mask.window, mask.prefix, mask.sinks);
  const Shape keys{sizes.batch, sizes.keys};
  require(
      !key_valid.defined() || (key_valid.dtype() == DType::boolean && key_valid.shape() == keys),
      "{}: key_valid must be bool{}, got {}", op, keys, key_valid);
  require(!documents.defined() || (documents.dtype() == DType::i32 && documents.shape() == keys),
          "{}: documents must be i32{}, got {}", op, keys, documents);
  const int64_t end = mask.query_offset + sizes.queries;
  require(!documents.defined() || (mask.query_offset >= 0 && end <= sizes.keys),
          "{}: a document mask needs every query among the keys; queries {}..{} of {} keys", op,
          mask.query_offset, end, sizes.keys);
}

DType at_least_f32(DType dtype) { return size_of(dtype) == 2 ? DType::f32 : dtype; }

}  // namespace faultline
