#pragma once

#include "autograd/op.h"
#include "kernels/attributes.h"

// Shape rules that several op families share.
namespace faultline {

// The output is like the first input.
void same_as_input(std::span<const Tensor> inputs, const Attributes& attributes,
                   std::span<OutputSpec> outputs);

// All inputs broadcast to one shape and have one dtype, which is the output's.
void broadcast_shape(std::span<const Tensor> inputs, const char* op, std::span<OutputSpec> outputs);

// Throws InvalidArgument unless the tensor holds i32 or i64.
void require_integers(const Tensor& tensor, const char* op, const char* what);
// Throws InvalidArgument unless the tensor holds a float.
void require_floats(const Tensor& tensor, const char* op);
// Throws InvalidArgument unless both are defined and have one dtype.
void require_same_dtype(const Tensor& a, const Tensor& b, const char* op);
// Throws InvalidArgument unless both have one shape and one dtype.
void require_alike(const Tensor& a, const Tensor& b, const char* op);

// The sizes of one attention: what a mask must fit.
struct AttentionSizes {
  int64_t batch;
  int64_t queries;
  int64_t keys;
};
// Throws InvalidArgument unless the rule is one (no negative size), key_valid is undefined or bool
// [B, K], and documents undefined or i32 [B, K] with every query among the keys.
void require_mask(const MaskAttributes& mask, const Tensor& key_valid, const Tensor& documents,
                  const AttentionSizes& sizes, const char* op);

// What a statistic or a table beside a tensor is kept in: f32 for 16-bit dtypes, else the same.
DType at_least_f32(DType dtype);

}  // namespace faultline
