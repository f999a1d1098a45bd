#include "softcap.h"

#include <cmath>
#include <complex>

#include "autograd/functional.h"
#include "autograd/op.h"
#include "core/threads.h"

// The whole of an op: its rules, its kernels, its row, and the function that users call.
using namespace faultline;

namespace {

struct SoftcapAttributes {
  double cap;
};

void softcap_shape(std::span<const Tensor> inputs, const Attributes&,
                   std::span<OutputSpec> outputs) {
  require(is_floating(inputs[0].dtype()), "softcap: needs a float dtype, got {}",
          describe(inputs[0]));
  outputs[0] = {inputs[0].shape(), inputs[0].dtype()};
}

// With y = cap tanh(x / cap), dy/dx = 1 - (y / cap)^2.
Grads softcap_derivative(const Saved& saved, std::span<const Tensor> grads) {
  const double cap = saved.attributes().as<SoftcapAttributes>().cap;
  return {grads[0] * affine(square(saved.output(0) * (1 / cap)), -1, 1)};
}

// One kernel in the scalar `Compute`, for every dtype that converts to it without loss. Kernels
// see any layout; the public function below only hands over contiguous tensors.
template <class Compute>
void softcap_kernel(const KernelArgs& args) {
  const auto cap = static_cast<Compute>(args.attributes.as<SoftcapAttributes>().cap);
  const TensorView& x = args.inputs[0];
  with_type(x.dtype, [&]<class T>() {
    const T* in = x.as<T>();
    T* out = args.outputs[0].as<T>();
    parallel_for(x.numel(), args.threads, [&](int64_t i) {
      out[i] = convert<T>(cap * std::tanh(convert<Compute>(in[i]) / cap));
    });
  });
}

// f64 and, for derivatives by complex step, c128.
void softcap_reference(const KernelArgs& args) {
  if (args.inputs[0].dtype == DType::c128) return softcap_kernel<std::complex<double>>(args);
  softcap_kernel<double>(args);
}

}  // namespace

RULES(softcap) = {.shape = softcap_shape, .derivative = softcap_derivative};

namespace {
// The columns that a row of core/ops.def would have.
constexpr OpDefinition kSoftcap{.name = "softcap",
                                .inputs = 1,
                                .outputs = 1,
                                .differentiable = 0b1,
                                .saved_inputs = 0,
                                .saved_outputs = 0b1,
                                .autocast = Autocast::full,
                                .determinism = Determinism::same_bits,
                                .kernels = Kernels::fast,
                                .rules = &rules_softcap,
                                .cpu = {"softcap", &softcap_kernel<float>},
                                .reference = {"softcap/reference", &softcap_reference}};
}  // namespace

Tensor softcap(const Tensor& x, double cap, Site site) {
  require(cap > 0, "softcap: the cap must be positive, got {}", cap);
  const Tensor input[] = {contiguous(x)};
  return apply(kSoftcap, input, SoftcapAttributes{cap}, site)[0];
}
