#include "autograd/functional.h"
#include "core/context.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

namespace faultline::optim {

Sgd::Sgd(std::vector<ParameterGroup> groups, SgdOptions options)
    : Optimizer("sgd", std::move(groups),
                options.momentum != 0 ? std::vector<const char*>{"momentum"}
                                      : std::vector<const char*>{}),
      options_(options) {
  require(options.momentum >= 0, "sgd: momentum must not be negative, got {}", options.momentum);
  require(!options.nesterov || options.momentum > 0, "sgd: Nesterov needs a momentum");
}

void Sgd::update(const ParameterGroup& group, const Tensor& table, std::span<const ByteRange> reads,
                 std::span<const ByteRange> writes, const Tensor&, const Tensor& lr,
                 const Tensor& factor) {
  const Context& context = Context::current();
  Launch update;
  update.kernel = context.seams.call<UpdateKernelSeam>(kernels::sgd);
  update.args.inputs[0] = table.view();
  update.args.inputs[2] = lr.view();
  update.args.input_count = 3;
  if (factor.defined()) update.args.inputs[update.args.input_count++] = factor.view();
  update.args.threads = context.threads;
  update.args.attributes = SgdAttributes{options_.momentum, group.weight_decay, options_.nesterov};
  update.label = {"sgd", "", Phase::optimizer, "its only kernel", Site::here()};
  update.indirect_reads = reads;
  update.indirect_writes = writes;
  launch(context.stream, update);
}

}  // namespace faultline::optim
