#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

namespace faultline::optim {

AdamW::AdamW(std::vector<ParameterGroup> groups, AdamWOptions options)
    : Optimizer("adamw", std::move(groups), {"m", "v"}),
      options_(options),
      corrections_(zeros({2}, DType::f64)) {
  const auto decays = [](double beta) { return beta >= 0 && beta < 1; };
  require(decays(options.beta1) && decays(options.beta2),
          "adamw: beta1 and beta2 must be in [0, 1), got {} and {}", options.beta1, options.beta2);
  require(options.epsilon >= 0, "adamw: eps must not be negative, got {}", options.epsilon);
}

void AdamW::update(const ParameterGroup& group, const Tensor& table,
                   std::span<const ByteRange> reads, std::span<const ByteRange> writes,
                   const Tensor& counter, const Tensor& lr, const Tensor& factor) {
  const Context& context = Context::current();
  Launch corrections;
  corrections.kernel = context.seams.call<CorrectionKernelSeam>(kernels::bias_corrections);
  corrections.args.inputs[0] = counter.view();
  corrections.args.input_count = 1;
  corrections.args.outputs[0] = corrections_.view();
  corrections.args.output_count = 1;
  corrections.args.attributes = BiasCorrectionAttributes{options_.beta1, options_.beta2};
  corrections.label = {"bias_corrections", "", Phase::optimizer, "its only kernel", Site::here()};
  launch(context.stream, corrections);

  Launch update;
  update.kernel = context.seams.call<UpdateKernelSeam>(kernels::adamw);
  update.args.inputs[0] = table.view();
  update.args.inputs[1] = corrections_.view();
  update.args.inputs[2] = lr.view();
  update.args.input_count = 3;
  if (factor.defined()) update.args.inputs[update.args.input_count++] = factor.view();
  update.args.threads = context.threads;
  update.args.attributes =
      AdamwAttributes{options_.beta1, options_.beta2, options_.epsilon, group.weight_decay};
  update.label = {"adamw", "", Phase::optimizer, "its only kernel", Site::here()};
  update.indirect_reads = reads;
  update.indirect_writes = writes;
  launch(context.stream, update);
}

}  // namespace faultline::optim
