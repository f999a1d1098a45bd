#include "autograd/functional.h"
#include "autograd/rules.h"

namespace faultline {
namespace {

Shape leading(const Shape& shape) {
  return Shape(std::span(shape.begin(), static_cast<size_t>(shape.rank() - 2)));
}

double product_flops(const KernelArgs& args) {
  return 2.0 * static_cast<double>(args.outputs[0].numel()) *
         static_cast<double>(args.inputs[0].shape[-1]);
}

// x as a matrix of its last dimension; written out because a size of -1 cannot stand beside 0.
Tensor rows(const Tensor& x) {
  return reshape(x, {numel(x.shape().without(x.rank() - 1)), x.shape()[-1]});
}

}  // namespace

// C = A B; dA = dC B^T, dB = A^T dC.
Tensor matmul(const Tensor& a, const Tensor& b, Site site) {
  return apply(Op::matmul, {a, b}, {}, site);
}

RULES(matmul) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          require(inputs.size() == 2, "matmul: takes 2 tensors, got {}", inputs.size());
          const Tensor& a = inputs[0];
          const Tensor& b = inputs[1];
          require(a.rank() >= 2 && b.rank() >= 2,
                  "matmul: needs at least two dimensions each, got {} and {}", a, b);
          require_same_dtype(a, b, "matmul");
          require_floats(a, "matmul");
          require(a.shape()[-1] == b.shape()[-2],
                  "matmul: {} and {} do not fit: the inner sizes are {} and {}", a, b,
                  a.shape()[-1], b.shape()[-2]);
          Shape shape = broadcast(leading(a.shape()), leading(b.shape()), "matmul");
          shape.push_back(a.shape()[-2]);
          shape.push_back(b.shape()[-1]);
          outputs[0] = {shape, a.dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const Tensor& dc = grads[0];
      return {saved.wants(0) ? matmul(dc, transpose(saved.input(1), -2, -1)) : Tensor(),
              saved.wants(1) ? matmul(transpose(saved.input(0), -2, -1), dc) : Tensor()};
    },
    .flops = product_flops};

// y = x W^T + b; dx = dy W, dW = dy^T x, db = sum of dy's rows.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Site site) {
  return apply(Op::linear, {x, weight, bias}, {}, site);
}

RULES(linear) = {
    .shape =
        [](std::span<const Tensor> inputs, const Attributes&, std::span<OutputSpec> outputs) {
          const Tensor& x = inputs[0];
          require(inputs.size() == 3 && inputs[1].defined() && inputs[1].rank() == 2,
                  "linear: needs x, a weight [out, in] and maybe a bias");
          const Tensor& weight = inputs[1];
          const Tensor& bias = inputs[2];
          require_same_dtype(x, weight, "linear");
          require_floats(x, "linear");
          require(x.rank() >= 1 && x.shape()[-1] == weight.shape()[1],
                  "linear: {} does not fit a weight {}: its last size must be {}", x, weight,
                  weight.shape()[1]);
          Shape shape = x.shape();
          shape[-1] = weight.shape()[0];
          if (bias.defined()) {
            require_same_dtype(x, bias, "linear");
            require(bias.shape() == Shape{weight.shape()[0]}, "linear: bias {} must be [{}]", bias,
                    weight.shape()[0]);
          }
          outputs[0] = {shape, x.dtype()};
        },
    .derivative = [](const Saved& saved, std::span<const Tensor> grads) -> Grads {
      const Tensor& dy = grads[0];
      Tensor dx;
      Tensor dw;
      Tensor db;
      if (saved.wants(0)) dx = matmul(dy.rank() == 1 ? rows(dy) : dy, saved.input(1));
      if (saved.wants(0) && dy.rank() == 1) dx = reshape(dx, saved.input_shape(0));
      if (saved.wants(1)) dw = matmul(transpose(rows(dy), 0, 1), rows(saved.input(0)));
      if (saved.wants(2)) db = sum(rows(dy), {0});
      return {dx, dw, db};
    },
    .flops = product_flops};

}  // namespace faultline
