#include "autograd/observe.h"

#include "core/context.h"
#include "kernels/kernels.h"

namespace faultline {

void observe(const char* what, std::initializer_list<Tensor> tensors, const Attributes& attributes,
             Site site) {
  const Context& context = Context::current();
  if (!context.events.wanted<LaunchEvent>()) return;
  Launch work;
  work.kernel = &kernels::observe;
  work.args.attributes = attributes;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) work.args.inputs[work.args.input_count] = tensor.view();
    ++work.args.input_count;
  }
  work.label = {what, context.module, context.phase, "observation", site};
  launch(context.stream, work);
}

}  // namespace faultline
